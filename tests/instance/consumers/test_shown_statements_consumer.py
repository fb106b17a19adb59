"""Tests which statements a consumer of Canal's protocol gets, with an example for each rule."""

from __future__ import annotations

import dataclasses

import pytest

from sluice.cdc_engine.binlog.entries.numbers import EventType
from sluice.cdc_engine.contracts import LoggedStatement, StatementSession
from sluice.cdc_engine.instance.consumers.statements import described
from sluice.cdc_engine.table_meta.ddl.reader import ORACLE
from tests.parser.scan.event_factory import EventFactory, feed, scanner


def logged(text: str) -> LoggedStatement:
    return LoggedStatement(
        text=text, database="shop", offset=4, length=100, seconds=1, server=1, session=StatementSession()
    )


@pytest.mark.parametrize(
    "text",
    [
        "CREATE TRIGGER t BEFORE INSERT ON orders FOR EACH ROW SET NEW.a = 1",
        "CREATE OR REPLACE VIEW v AS SELECT * FROM orders",
        "ALTER VIEW v AS SELECT a FROM orders",
        "DROP TRIGGER IF EXISTS t",
        "DROP VIEW v, w",
        "CREATE PROCEDURE p() DELETE FROM orders",
        "CREATE FUNCTION f() RETURNS int RETURN 1",
        "GRANT SELECT ON shop.* TO reader",
    ],
)
def test_what_canal_shows_to_no_client_is_not_shown(text: str) -> None:
    assert described(logged(text)) is None


def test_a_statement_about_a_table_is_shown_with_its_kind() -> None:
    found = described(logged("DROP TABLE orders"))
    assert found is not None
    assert (found.kind, found.tables) == (EventType.ERASE, (("shop", "orders"),))


def read_from(version: bytes, text: str) -> LoggedStatement:
    """Returns the statement as the parser reads it from a binlog file of a server of this version."""
    make = EventFactory()
    blocks = feed(scanner(), [make.format_description(version), make.query(text)])
    return next(block.statement for block in blocks if block.statement is not None)


@pytest.mark.found
@pytest.mark.parametrize(
    ("text", "kind", "tables"),
    [
        ("RENAME TABLE a TO b /*M!100301 , c TO d */", EventType.RENAME, ["b", "a", "c", "d"]),
        ("DROP TABLE a /*M! , b */", EventType.ERASE, ["a", "b"]),
        ("CREATE TABLE a (born mariadb_schema.date)", EventType.CREATE, ["a"]),
    ],
)
def test_a_statement_of_mariadb_is_described_by_the_rules_of_mariadb(
    text: str, kind: EventType, tables: list[str]
) -> None:
    """Defect 1124: Sluice read statements of MariaDB by the rules of MySQL. It left out tables in MariaDB's executable comments, and showed
    a CREATE TABLE with a type that only MariaDB has as ALTER.
    """
    found = described(read_from(b"5.5.5-11.4.5-MariaDB-log", text))
    assert found is not None
    assert (found.kind, [table for _, table in found.tables]) == (kind, tables)
    of_mysql = described(read_from(b"8.0.31", text.replace("mariadb_schema.", "")))
    assert of_mysql is not None
    assert [table for _, table in of_mysql.tables] == [each for each in tables if each in text.partition("/*")[0]]


@pytest.mark.parametrize(
    ("text", "kind", "tables"),
    [
        ("ALTER TABLE a RENAME TO b, ADD c INT", EventType.RENAME, ["b", "a"]),
        ("ALTER TABLE a ADD UNIQUE (i), ADD c INT", EventType.CINDEX, ["a"]),
        ("ALTER TABLE a ADD c INT", EventType.ALTER, ["a"]),
    ],
)
def test_a_statement_in_the_mode_oracle_is_shown_with_its_kind(text: str, kind: EventType, tables: list[str]) -> None:
    """Types have other meanings in this mode, so the schema history refuses these statements. Their kinds and tables are known."""
    session = StatementSession(flavour="mariadb", sql_mode=ORACLE)
    found = described(dataclasses.replace(logged(text), session=session))
    assert found is not None
    assert (found.kind, [table for _, table in found.tables]) == (kind, tables)


@pytest.mark.found
def test_a_create_table_that_cannot_be_read_is_shown_as_create() -> None:
    """Defect 1124: consumers got a CREATE TABLE that Sluice cannot read as ALTER."""
    found = described(logged("CREATE TABLE orders (a frob(7) frob)"))
    assert found is not None
    assert (found.kind, found.tables) == (EventType.CREATE, (("shop", "orders"),))
