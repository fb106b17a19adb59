"""Tests the schema history with the binlogs of real servers. At every position, the history has the schema that the server had there."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cdc_engine.contracts import TableChangeKind
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.table_meta.history.history import TableHistory
from sluice.cdc_engine.table_meta.history.source.schema_snapshot import read_snapshot, stable_snapshot
from sluice.console.toolchain.database.server import DatabaseServer
from tests.table_meta.corpus import ALTERS, CREATES, MARIADB_ALTERS, MYSQL_ALTERS
from tests.table_meta.replay import Scene, row_metadata, scene

pytestmark = pytest.mark.servers

INSERTS = (
    "INSERT INTO numbers () VALUES ()",
    "INSERT INTO strings () VALUES ()",
    "INSERT INTO labels (b) VALUES ('x')",
    "INSERT INTO times (j) VALUES (point(1, 2))",
    "INSERT INTO serials () VALUES ()",
    "INSERT INTO `od``d, name` VALUES (1, 2, 3, 4, 5)",
    "INSERT INTO inline_key () VALUES ()",
    "INSERT INTO indexes (a, b, d) VALUES (1, 'x', point(1, 2))",
    "INSERT INTO parts () VALUES ()",
    "INSERT INTO comments () VALUES ()",
    "INSERT INTO copied (a, b, d) VALUES (1, 'x', point(1, 2))",
    "INSERT INTO copied_too () VALUES ()",
    "INSERT INTO binary_default () VALUES ()",
)


def seeded(played: Scene, folder: Path) -> TableHistory:
    history = TableHistory(folder / "schema.jsonl", played.captured)
    history.seed(played.before, Position(epoch=1, file=played.file, offset=played.start))
    return history


def assert_history_equals_server(played: Scene, history: TableHistory) -> None:
    for position, statement, tables in played.after:
        expected = {table.table: table.version() for table in tables}
        got = {version.table: version for version in history.versions(position)}
        assert got == expected, statement


def play(played: Scene, alters: tuple[str, ...]) -> int:
    for statement in CREATES:
        if "AS SELECT" not in statement or "mysql-5.7" not in played.server.version:  # MySQL 5.7 refuses it with GTIDs.
            played.run(statement)
    for row in INSERTS:
        played.run(row)
    for count, statement in enumerate(alters):
        played.run(statement)
        played.run(
            f"INSERT INTO grown (id, d) VALUES ({count}, 'x,y')" if count else "INSERT INTO grown (id) VALUES (-1)"
        )
    return len(INSERTS) + len(alters)


@pytest.mark.parametrize(("metadata", "charset"), [("FULL", "utf8mb4"), ("MINIMAL", "latin1")])
def test_mysql_statements_give_the_schema_the_server_has(
    mysql80: DatabaseServer, tmp_path: Path, metadata: str, charset: str
) -> None:
    with row_metadata(mysql80, metadata), scene(mysql80, "meta_ddl", charset) as played:
        _assert_all(played, tmp_path, ALTERS + MYSQL_ALTERS)


@pytest.mark.parametrize(("metadata", "charset"), [("FULL", "utf8mb4"), ("MINIMAL", "latin1"), ("NO_LOG", "utf8mb4")])
def test_mariadb_statements_give_the_schema_the_server_has(
    mariadb114: DatabaseServer, tmp_path: Path, metadata: str, charset: str
) -> None:
    with row_metadata(mariadb114, metadata), scene(mariadb114, "meta_ddl", charset) as played:
        _assert_all(played, tmp_path, ALTERS + MARIADB_ALTERS)


def test_mysql57_statements_give_the_schema_the_server_has(mysql57: DatabaseServer, tmp_path: Path) -> None:
    """The table maps of MySQL 5.7 have no optional metadata."""
    with scene(mysql57, "meta_ddl", "latin1") as played:
        _assert_all(played, tmp_path, ALTERS)


def test_mariadb1011_statements_give_the_schema_the_server_has(mariadb1011: DatabaseServer, tmp_path: Path) -> None:
    with row_metadata(mariadb1011, "MINIMAL"), scene(mariadb1011, "meta_ddl") as played:
        _assert_all(played, tmp_path, ALTERS)


def _assert_all(played: Scene, folder: Path, alters: tuple[str, ...]) -> None:
    insert_count = play(played, alters)
    history = seeded(played, folder)
    replayed = played.replay(history)
    assert [change.reason for change in replayed.changes if change.kind is TableChangeKind.STOPPED] == []
    assert replayed.stopped == []
    assert len(replayed.versions) >= insert_count
    assert_history_equals_server(played, history)
    assert_history_equals_server(played, TableHistory(folder / "schema.jsonl", played.captured))
    text = (folder / "schema.jsonl").read_text()
    assert '"table_map"' not in text, "a table map with full metadata differed from the history"
    for table_map, version in replayed.versions:
        assert (version.database, version.table) == (table_map.database, table_map.table)
        assert tuple(column.type_code for column in version.columns) == table_map.type_codes
        assert tuple(column.metadata for column in version.columns) == table_map.metadata
        assert tuple(column.nullable for column in version.columns) == table_map.nullable


@pytest.mark.parametrize("server", ["mysql80", "mariadb114"])
def test_full_metadata_alone_gives_what_the_history_would(
    server: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Without any schema in the history, full metadata in table maps gives the same columns. Only types that a table map cannot distinguish
    differ (`tinyint(1)`, kinds of geometry, float(7,3)).
    """
    source: DatabaseServer = request.getfixturevalue(server)
    with row_metadata(source, "FULL"), scene(source, "meta_full") as played:
        for statement in (*CREATES, *INSERTS):
            played.run(statement)
        known = played.replay(seeded(played, tmp_path))
        bare = TableHistory(tmp_path / "alone" / "schema.jsonl", lambda *_: False)
        bare.seed(played.before, Position(epoch=1, file=played.file, offset=played.start))
        alone = played.replay(bare)
    assert len(alone.versions) == len(known.versions) >= len(INSERTS)
    for (_, reported), (_, remembered) in zip(alone.versions, known.versions, strict=True):
        for column, other in zip(reported.columns, remembered.columns, strict=True):
            layout = (
                column.name,
                column.type_code,
                column.metadata,
                column.unsigned,
                column.charset,
                column.labels,
                column.nullable,
            )
            assert layout == (
                other.name,
                other.type_code,
                other.metadata,
                other.unsigned,
                other.charset,
                other.labels,
                other.nullable,
            )
        if remembered.key:
            assert reported.key == remembered.key


def test_generated_columns_are_in_row_images_and_functional_index_columns_are_not(
    mysql80: DatabaseServer, tmp_path: Path
) -> None:
    with scene(mysql80, "meta_generated") as played:
        played.run(
            "CREATE TABLE g (a int primary key, v int AS (a + 1) VIRTUAL, s int AS (a + 2) STORED, j json, n int INVISIBLE)"
        )
        played.run("CREATE INDEX f ON g ((a + 10))")
        played.run("CREATE INDEX m ON g ((CAST(j->'$.x' AS UNSIGNED ARRAY)))")
        played.run("INSERT INTO g (a, j) VALUES (1, '{\"x\": [1, 2]}')")
        history = seeded(played, tmp_path)
        ((table_map, version),) = played.replay(history).versions
    assert table_map.column_count == 5
    assert [column.name for column in version.columns] == ["a", "v", "s", "j", "n"]


def test_a_hidden_primary_key_is_in_the_statement_the_server_logs(mysql80: DatabaseServer, tmp_path: Path) -> None:
    with scene(mysql80, "meta_gipk") as played:
        played.run("SET SESSION sql_generate_invisible_primary_key = ON")
        played.run("CREATE TABLE k (a int)")
        played.run("CREATE TABLE k2 AS SELECT 1 AS q")
        played.run("INSERT INTO k VALUES (1)")
        history = seeded(played, tmp_path)
        replayed = played.replay(history)
        assert_history_equals_server(played, history)
    assert {version.key for _, version in replayed.versions} == {("my_row_id",)}


@pytest.mark.parametrize("server", ["mysql80", "mariadb114"])
def test_a_snapshot_is_the_same_as_the_statements_it_came_from(
    server: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source: DatabaseServer = request.getfixturevalue(server)
    with scene(source, "meta_snapshot") as played:
        for statement in (*CREATES, "CREATE VIEW looks AS SELECT * FROM numbers"):
            played.run(statement)
        snapshot, position = stable_snapshot(played.connection, played.captured, played.now)
        replayed = seeded(played, tmp_path)
        played.replay(replayed)
        fresh = TableHistory(tmp_path / "fresh" / "schema.jsonl", played.captured)
        fresh.seed(snapshot, position)
    assert fresh.versions(position) == replayed.versions(position)
    assert "looks" not in {version.table for version in fresh.versions(position)}
    assert snapshot == read_snapshot(source.connect(), played.captured)


def test_a_statement_that_was_missed_stops_the_table_at_its_next_row(mysql80: DatabaseServer, tmp_path: Path) -> None:
    with row_metadata(mysql80, "MINIMAL"), scene(mysql80, "meta_missed") as played:
        played.run("CREATE TABLE t (id int primary key, v varchar(10))")
        history = seeded(played, tmp_path)
        played.replay(history)
        missed = played.now()
        played.run("ALTER TABLE t MODIFY v varchar(20)")
        played.start = played.now().offset
        played.run("INSERT INTO t VALUES (1, 'x')")
        (error,) = played.replay(history).stopped
    assert missed.offset < played.start
    assert error.state == "SCHEMA_MISMATCH"
    assert "column 2 (v): the table map has varchar(20)" in error.reason
    assert "the schema history has varchar(10)" in error.reason
