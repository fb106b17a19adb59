"""Tests facts of a server that versions report in different forms: Sluice decides by the server's answer, not by its version."""

from __future__ import annotations

from typing import Any

import pymysql
import pytest

from sluice.cdc_engine.errors import SourceConnectionError
from sluice.cdc_engine.parser.connection import SourceConnection
from sluice.cdc_engine.parser.server_facts import ServerFacts, read_facts
from sluice.cdc_engine.parser.source_check import missing_privileges
from sluice.cdc_engine.source.server import Source
from sluice.console.toolchain.database.server import DatabaseServer

NEW, OLD = "SHOW BINARY LOG STATUS", "SHOW MASTER STATUS"
END = {"File": "binlog.000042", "Position": 157, "Executed_Gtid_Set": "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5"}
SYNTAX, FORBIDDEN, GONE = 1064, 1227, 2013


class FakeSession:
    """Imitates a connection and its cursor. `answers` has the rows that a statement returns, or the number of the error that it raises.
    Other statements return no rows.
    """

    def __init__(self, answers: dict[str, list[dict[str, Any]] | int]) -> None:
        self._answers = answers
        self._rows: list[dict[str, Any]] = []
        self.statements: list[str] = []

    def cursor(self) -> FakeSession:
        return self

    def __enter__(self) -> FakeSession:
        return self

    def __exit__(self, *_: object) -> None:
        """Does nothing, because nothing is open."""

    def execute(self, sql: str, arguments: tuple[Any, ...] = ()) -> None:  # noqa: ARG002  of a cursor
        self.statements.append(sql)
        answer = self._answers.get(sql, [])
        if isinstance(answer, int):
            raise pymysql.err.ProgrammingError(answer, "told to")
        self._rows = answer

    def fetchall(self) -> list[dict[str, Any]]:
        return self._rows

    def get_server_info(self) -> str:
        return "8.4.0"


def facts_of(session: FakeSession) -> ServerFacts:
    connection = SourceConnection.__new__(SourceConnection)
    connection.source = Source(destination="shop", host="h", port=1, user="u")
    connection._connection = session  # type: ignore[assignment]
    return read_facts(connection)


def test_the_statement_since_8_4_is_executed_first_and_alone() -> None:
    session = FakeSession({NEW: [END], OLD: SYNTAX})
    facts = facts_of(session)
    assert (facts.file, facts.offset, facts.executed) == tuple(END.values())
    assert OLD not in session.statements


@pytest.mark.parametrize("refusal", [SYNTAX, FORBIDDEN])
def test_a_server_that_refuses_it_gets_the_old_statement(refusal: int) -> None:
    session = FakeSession({NEW: refusal, OLD: [END]})
    facts = facts_of(session)
    assert (facts.file, facts.offset, facts.executed) == tuple(END.values())
    assert session.statements.index(NEW) < session.statements.index(OLD)


def test_a_server_that_answers_neither_leaves_the_position_unknown() -> None:
    facts = facts_of(FakeSession({NEW: SYNTAX, OLD: FORBIDDEN}))
    assert (facts.file, facts.offset) == ("", 0)


def test_a_line_that_breaks_is_not_taken_for_another_wording() -> None:
    session = FakeSession({NEW: GONE, OLD: [END]})
    with pytest.raises(SourceConnectionError):
        facts_of(session)
    assert OLD not in session.statements


def test_an_empty_answer_is_an_answer() -> None:
    session = FakeSession({NEW: [], OLD: [END]})
    assert facts_of(session).file == ""
    assert OLD not in session.statements


@pytest.mark.found
@pytest.mark.parametrize(
    ("grants", "active", "inactive"),
    [
        (["GRANT `r1`@`%`,`r2`@`%` TO `u`@`%`"], "NONE", ("r1", "r2")),
        (
            ["GRANT SELECT ON *.* TO `u`@`%`", "GRANT `r1`@`%`,`r2`@`%` TO `u`@`%` WITH ADMIN OPTION"],
            "`r1`@`%`",
            ("r2",),
        ),
        (["GRANT `r1`@`%` TO `u`@`%`"], "`r1`@`%`", ()),
        (["GRANT `r1` TO `u`@`%`", "GRANT `r2` TO `u`@`%`", "GRANT `within` TO `r1`"], "r1", ("r2",)),
        (["GRANT `r1` TO `u`@`%`", "GRANT SELECT ON *.* TO `u`@`%`"], None, ("r1",)),
    ],
    ids=["MySQL none", "MySQL some", "MySQL all", "MariaDB one", "MariaDB none"],
)
def test_only_active_roles_count(grants: list[str], active: str | None, inactive: tuple[str, ...]) -> None:
    """Defect 1125: the privileges of all roles of the account counted."""
    answers: dict[str, list[dict[str, Any]] | int] = {
        "SHOW GRANTS": [{"Grants": grant} for grant in grants],
        "SELECT CURRENT_ROLE() AS roles": [{"roles": active}],
    }
    facts = facts_of(FakeSession(answers))
    assert (facts.grants, facts.inactive_roles) == (tuple(grants), inactive)


@pytest.mark.found
@pytest.mark.servers
@pytest.mark.parametrize("fixture", ["mysql80", "mariadb114"])
def test_a_role_counts_once_it_is_active(fixture: str, request: pytest.FixtureRequest) -> None:
    """Defect 1125: a session has only the privileges of its active roles. On MySQL, the check reported those of all roles."""
    server: DatabaseServer = request.getfixturevalue(fixture)
    mariadb = "mariadb" in server.version
    with server.connect() as connection, connection.cursor() as cursor:

        def missing() -> tuple[list[str], tuple[str, ...]]:
            source = Source(destination="shop", host="127.0.0.1", port=server.port, user="acting", password=lambda: "x")
            session = SourceConnection(source)
            try:
                facts = read_facts(session)
            finally:
                session.close()
            return missing_privileges(facts), facts.inactive_roles

        every = "SELECT, REPLICATION SLAVE, REPLICATION CLIENT"
        for sql in (
            *("CREATE USER acting IDENTIFIED BY 'x'", "CREATE ROLE part", "CREATE ROLE whole"),
            *(f"GRANT {every} ON *.* TO part", "GRANT part TO whole", "GRANT whole TO acting"),
        ):
            cursor.execute(sql)
        try:
            lacking, inactive = missing()
            assert (len(lacking), inactive) == (3, ("whole",))
            cursor.execute("SET DEFAULT ROLE whole FOR acting" if mariadb else "SET DEFAULT ROLE ALL TO acting")
            assert missing() == ([], ())
        finally:
            for sql in ("DROP USER acting", "DROP ROLE whole", "DROP ROLE part"):
                cursor.execute(sql)
