"""Tests special statements and tables, from real servers to staged files: sessions in other formats than ROW, outer joins, temporary
tables, sequences, and tables of other engines.
"""

from __future__ import annotations

import re
from pathlib import Path

import pymysql
import pytest

from sluice.cdc_engine.staging import StagingResult
from sluice.console.toolchain.database.server import DatabaseServer
from tests.fidelity.pipeline import SERVERS, Pipeline, images, row_metadata, run

pytestmark = pytest.mark.servers

DATABASE = "statements"
TABLES = (
    "CREATE TABLE parents (id int PRIMARY KEY, v varchar(9) NOT NULL, t timestamp NOT NULL DEFAULT '2020-01-01 00:00:00')",
    "CREATE TABLE children (id int PRIMARY KEY, p int, FOREIGN KEY (p) REFERENCES parents (id) ON DELETE CASCADE)",
    "CREATE TABLE others (id int PRIMARY KEY, v varchar(9) NOT NULL)",
    "CREATE TABLE loaded (id int PRIMARY KEY, v varchar(9))",
)


def begun(server: DatabaseServer, folder: Path, *more: str) -> Pipeline:
    run(server, f"DROP DATABASE IF EXISTS {DATABASE}", f"CREATE DATABASE {DATABASE}")
    run(server, *TABLES, *more, database=DATABASE)
    return Pipeline.of(server, DATABASE, folder)


def stops(staged: StagingResult) -> dict[str, str]:
    return {stopped.table: stopped.state for stopped in staged.stopped}


def ids(staged: StagingResult, table: str) -> list[int]:
    left = [each for each in staged.stopped if each.table != table]
    assert len(left) == len(staged.stopped)
    kept = StagingResult(path=staged.path, manifest=staged.manifest, stopped=())
    return [row["id"] for row in images(kept, table).to_pylist()]


@pytest.mark.parametrize("name", SERVERS)
def test_a_session_out_of_row_format_stops_the_tables_it_writes_to_fidelity(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server: DatabaseServer = request.getfixturevalue(name)
    pipeline = begun(server, tmp_path)
    csv = tmp_path / "rows.csv"
    csv.write_text("7,x\n8,y\n")
    run(server, "INSERT INTO parents (id, v) VALUES (1, 'a')", "INSERT INTO others VALUES (1, 'a')", database=DATABASE)
    in_text = (
        "SET SESSION binlog_format = 'STATEMENT', SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
        "BEGIN",
        "UPDATE parents SET v = 'b'",
        "COMMIT",
        f"LOAD DATA LOCAL INFILE '{csv}' INTO TABLE loaded FIELDS TERMINATED BY ','",
        "SET SESSION binlog_format = 'ROW'",
        "INSERT INTO others VALUES (2, 'b')",
        "INSERT INTO parents (id, v) VALUES (2, 'c')",
    )
    run(server, "SET GLOBAL local_infile = 1")
    run(server, *(part for text in in_text for part in _apart(text)), database=DATABASE, local_infile=True)
    staged = pipeline.staged()
    states = {"parents": "STATEMENT_FORMAT", "children": "CASCADE_UNSEEN", "loaded": "STATEMENT_FORMAT"}
    assert stops(staged) == states
    assert ids(staged, "others") == [1, 2]
    assert all(re.search(r"\.\d+:\d+@1", stopped.reason) for stopped in staged.stopped)


@pytest.mark.parametrize("name", SERVERS)
def test_a_temporary_table_that_hides_a_captured_one_never_empties_it_fidelity(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """In a session that is not in row format, TRUNCATE of a temporary table is logged as text, like TRUNCATE of the captured table. Only a
    flag of the event distinguishes the two.
    """
    server: DatabaseServer = request.getfixturevalue(name)
    pipeline = begun(server, tmp_path)
    run(server, "INSERT INTO others VALUES (1, 'a')", "INSERT INTO loaded VALUES (1, 'a')", database=DATABASE)
    run(
        server,
        "SET SESSION binlog_format = 'STATEMENT'",
        "CREATE TEMPORARY TABLE others (id int)",
        "TRUNCATE others",
        "TRUNCATE loaded",
        database=DATABASE,
    )
    run(server, "INSERT INTO loaded VALUES (2, 'b')", database=DATABASE)
    staged = pipeline.staged()
    assert stops(staged) == {"others": "STATEMENT_FORMAT"}
    kinds = {table.table: [type(each).__name__ for each in table.segments] for table in staged.manifest.tables}
    assert "TruncateSegment" in kinds["loaded"]
    assert "TruncateSegment" not in kinds["others"]


def _apart(text: str) -> list[str]:
    first, found, second = text.partition(", SESSION TRANSACTION")
    return [first, f"SET SESSION TRANSACTION{second}"] if found else [text]


@pytest.mark.parametrize("metadata", ["MINIMAL", "FULL"])
@pytest.mark.parametrize("name", SERVERS)
def test_updates_over_an_outer_join_are_followed_fidelity(
    name: str, metadata: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The table map says that columns of the inner side may be NULL. Other table maps of the same transaction say that they may not."""
    server: DatabaseServer = request.getfixturevalue(name)
    with row_metadata(server, metadata):
        pipeline = begun(server, tmp_path)
        run(
            server,
            "BEGIN",
            "INSERT INTO others VALUES (1, 'a'), (2, 'b')",
            "INSERT INTO parents (id, v) VALUES (1, 'a')",
            "UPDATE others LEFT JOIN parents ON parents.id = others.id SET others.v = 'x', parents.v = 'y'",
            "UPDATE parents RIGHT JOIN others ON parents.id = others.id SET parents.v = 'z'",
            "UPDATE parents SET v = 'last'",
            "COMMIT",
            database=DATABASE,
        )
        staged = pipeline.staged()
    assert stops(staged) == {}
    assert [row["v"] for row in images(staged, "parents").to_pylist()] == ["a", "y", "z", "last"]


@pytest.mark.parametrize("name", SERVERS)
def test_tables_of_engines_without_rows_of_their_own_stop_from_the_beginning_ddl(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server: DatabaseServer = request.getfixturevalue(name)
    pipeline = begun(
        server,
        tmp_path,
        "CREATE TABLE under (id int NOT NULL, KEY (id)) ENGINE=MyISAM",
        "CREATE TABLE above (id int NOT NULL, KEY (id)) ENGINE=MERGE UNION=(under) INSERT_METHOD=LAST",
        "CREATE TABLE copied_from (id int PRIMARY KEY)",
    )
    made = ["above", "under"]
    with server.connect(database=DATABASE) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE above_too LIKE above")
        made.append("above_too")
        try:
            cursor.execute("CREATE TABLE hole (id int PRIMARY KEY) ENGINE=BLACKHOLE")
            made.append("hole")
        except pymysql.MySQLError:
            assert name.startswith("mariadb"), "MySQL has it built in"
    later = Pipeline.of(server, DATABASE, tmp_path / "later")
    inserts = [f"INSERT INTO `{table}` VALUES (1)" for table in ("above", "under", *made[3:], "copied_from")]
    run(server, *inserts, database=DATABASE)
    for begin, stopped in ((pipeline, ["above", "under"]), (later, ["above", "under", *made[3:]])):
        staged = begin.staged()
        expected = {*stopped, *(("above_too", *made[3:]) if begin is pipeline else ())}
        assert stops(staged) == dict.fromkeys(expected, "ROWS_ELSEWHERE")
        assert ids(staged, "copied_from") == [1]


@pytest.mark.parametrize("name", SERVERS)
def test_a_label_that_the_servers_do_not_show_is_not_taken_for_a_question_mark_fidelity(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server: DatabaseServer = request.getfixturevalue(name)
    columns = "e enum('a', '\U0001f600', 'b?') CHARACTER SET {0}, s set('x', '\U0001f600y') CHARACTER SET {0}"
    made = [f"CREATE TABLE labels_{kind} (id int PRIMARY KEY, {columns.format('utf8mb4')})" for kind in "abc"]
    text = f"CREATE TABLE narrow (id int PRIMARY KEY, {columns.format('utf8mb3' if name == 'mysql80' else 'utf8')})"
    pipeline = begun(server, tmp_path, "SET NAMES utf8mb4", *made, text.replace("\U0001f600", "?"))
    run(
        server,
        "SET NAMES utf8mb4",
        "INSERT INTO labels_a VALUES (1, 1, 1)",
        "INSERT INTO labels_b VALUES (1, 2, 1)",
        "INSERT INTO labels_c VALUES (1, 1, 3)",
        "INSERT INTO narrow VALUES (1, 3, 3)",
        f"CREATE TABLE labels_d (id int PRIMARY KEY, {columns.format('utf8mb4')})",
        "INSERT INTO labels_d VALUES (1, 2, 3)",
        database=DATABASE,
        charset="utf8mb4",
    )
    staged = pipeline.staged()
    assert stops(staged) == dict.fromkeys(("labels_b", "labels_c"), "TYPE_UNSUPPORTED")
    assert all("binlog_row_metadata=FULL" in stopped.reason for stopped in staged.stopped)
    kept = StagingResult(path=staged.path, manifest=staged.manifest, stopped=())
    shown = [images(kept, table).to_pylist()[0] for table in ("labels_a", "narrow", "labels_d")]
    assert [(row["e"], row["s"]) for row in shown] == [
        ("a", "x"),
        ("b?", "x,?y"),
        ("\U0001f600", "x,\U0001f600y"),
    ]


@pytest.mark.managed
@pytest.mark.parametrize("name", ["mariadb1011", "mariadb114"])
def test_a_rename_of_a_temporary_table_stops_the_captured_table_of_that_name_fidelity(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """MariaDB logs the statement in ROW format too, without the flag of a session's table, so nothing distinguishes it."""
    server: DatabaseServer = request.getfixturevalue(name)
    pipeline = begun(server, tmp_path)
    temporary = ("CREATE TEMPORARY TABLE others (x int)", "RENAME TABLE others TO session_own")
    run(server, *temporary, "INSERT INTO loaded VALUES (2, 'b')", database=DATABASE)
    stages = list(pipeline.batches())
    assert stops(stages[0]) == {"others": "DDL_REFUSED"}
    assert "loaded" in {table.table for each in stages for table in each.manifest.tables}, "other tables continue"


@pytest.mark.parametrize("metadata", ["MINIMAL", "FULL"])
@pytest.mark.parametrize("name", ["mariadb1011", "mariadb114"])
def test_ddl_of_sequences_makes_no_table(
    name: str, metadata: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The row events of sequences look like those of a table with eight columns."""
    server: DatabaseServer = request.getfixturevalue(name)
    columns = (
        "next_not_cached_value bigint NOT NULL, minimum_value bigint NOT NULL, maximum_value bigint NOT NULL, "
        "start_value bigint NOT NULL, increment bigint NOT NULL, cache_size bigint unsigned NOT NULL, "
        "cycle_option tinyint unsigned NOT NULL, cycle_count bigint NOT NULL"
    )
    with row_metadata(server, metadata):
        pipeline = begun(server, tmp_path, "CREATE SEQUENCE before_it")
        run(
            server,
            "SELECT NEXTVAL(before_it)",
            "CREATE SEQUENCE s",
            f"CREATE TABLE s2 ({columns}) SEQUENCE=1",
            "CREATE TABLE numbered (id bigint DEFAULT NEXTVAL(s) PRIMARY KEY, v int)",
            "INSERT INTO numbered (v) VALUES (1), (NEXTVAL(s2))",
            "ALTER SEQUENCE s RESTART 70",
            "INSERT INTO numbered (v) VALUES (3)",
            "DROP SEQUENCE s2",
            database=DATABASE,
        )
        staged = pipeline.staged()
    assert stops(staged) == {}
    assert {table.table for table in staged.manifest.tables} == {"numbered"}
    assert ids(staged, "numbered") == [1, 2, 70]
