"""Tests that names are folded as the servers fold them, and how statements are read that only one server or one SQL mode has."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cdc_engine.binlog.events.control import parse_query
from sluice.cdc_engine.contracts import TableChange
from sluice.cdc_engine.parser.scan.scanner import Scanner
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.table_meta.ddl.declared_type import MYSQL
from sluice.cdc_engine.table_meta.ddl.lower_case import lowered
from sluice.cdc_engine.table_meta.ddl.reader import ANSI_QUOTES, ORACLE, read_statement
from sluice.cdc_engine.table_meta.ddl.statement import (
    AlterTable,
    ChangeColumn,
    CreateStoredObject,
    CreateTable,
    DropColumn,
    Nothing,
    SetDefault,
    Truncate,
    Unread,
)
from sluice.cdc_engine.table_meta.history.history import TableHistory
from sluice.cdc_engine.table_meta.history.source.schema_snapshot import SchemaSnapshot
from sluice.cdc_engine.table_meta.schema import DdlServerFacts, DeclaredColumn, TableSchema
from sluice.console.toolchain.database.server import DatabaseServer
from tests.parser.scan.event_factory import START, EventFactory, feed

CHARACTERS_A_QUERY = 800


@pytest.mark.servers
@pytest.mark.parametrize("server", ["mysql80", "mariadb114"])
def test_ddl_names_are_folded_as_the_server_folds_them(server: str, request: pytest.FixtureRequest) -> None:
    """A name can contain only characters of Unicode's basic plane. The test uses all of them that have another lower case."""
    source: DatabaseServer = request.getfixturevalue(server)
    characters = [chr(index) for index in range(0x21, 0x10000) if not 0xD800 <= index < 0xE000]
    characters = [
        character for character in characters if character.lower() != character or lowered(character) != character
    ]
    assert len(characters) > 1000
    with source.connect() as connection, connection.cursor() as cursor:
        for start in range(0, len(characters), CHARACTERS_A_QUERY):
            chunk = characters[start : start + CHARACTERS_A_QUERY]
            folded = (
                f"HEX(LOWER(CONVERT(_utf8mb4 x'{character.encode().hex()}' USING utf8mb3)))" for character in chunk
            )
            cursor.execute(f"SELECT {', '.join(folded)}")
            wanted = [bytes.fromhex(text).decode() for text in cursor.fetchall()[0]]
            assert [lowered(character) for character in chunk] == wanted


def test_ddl_a_name_is_folded_character_by_character() -> None:
    assert lowered("ΟΔΟΣ") == "οδοσ"
    assert lowered("İẞ") == "iẞ"


@pytest.mark.parametrize(
    ("statement", "flavour", "sql_mode", "name"),
    [
        ("TRUNCATE TABLE db.20151214", "mysql", 0, ("db", "20151214")),
        ("TRUNCATE db.1e5", "mysql", 0, ("db", "1e5")),
        ("TRUNCATE db.0x12", "mysql", 0, ("db", "0x12")),
        ("TRUNCATE `db`.20151214", "mysql", 0, ("db", "20151214")),
        ("TRUNCATE `order-items`", "mariadb", ORACLE | ANSI_QUOTES, ("", "order-items")),
        ('TRUNCATE "order\\"', "mysql", ANSI_QUOTES, ("", "order\\")),
        ("TRUNCATE \u00a0t", "mysql", 0, ("", "\u00a0t")),
    ],
)
def test_ddl_a_name_is_whole(statement: str, flavour: str, sql_mode: int, name: tuple[str, str]) -> None:
    read = read_statement(statement, flavour, sql_mode)
    assert isinstance(read, Truncate)
    assert (read.name.database, read.name.table) == name


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE OR REPLACE JSON RELATIONAL DUALITY VIEW v AS SELECT JSON_DUALITY_OBJECT('_id': id) FROM t",
        "CREATE JSON DUALITY VIEW v AS SELECT JSON_DUALITY_OBJECT('_id': id) FROM t",
        "CREATE LIBRARY IF NOT EXISTS l LANGUAGE JAVASCRIPT AS $$ export function f() { return 't' } $$",
        "DROP LIBRARY l",
        "CREATE FUNCTION f(a INT) RETURNS INT LANGUAGE JAVASCRIPT USING (l) AS $$ return a $$",
        "CREATE MATERIALIZED VIEW v AS SELECT 1",
    ],
)
def test_ddl_what_newer_servers_make_that_is_no_table_changes_none(statement: str) -> None:
    assert isinstance(read_statement(statement, MYSQL), Nothing | CreateStoredObject)


@pytest.mark.parametrize("action", ["SECONDARY_LOAD PARTITION (p0)", "SECONDARY_UNLOAD", "UPGRADE PARTITIONING"])
def test_ddl_actions_of_other_engines_change_no_column(action: str) -> None:
    read = read_statement(f"ALTER TABLE t {action}", MYSQL)
    assert isinstance(read, AlterTable)
    assert (read.items, read.rows_lost) == ((), ())


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE t (a int, v vector(3) NOT NULL, VECTOR (v))",
        "CREATE TABLE t (a int, v vector(3) NOT NULL, VECTOR near (v) DISTANCE=cosine M=6)",
        "CREATE TABLE t (a int, v vector(3) NOT NULL, VECTOR INDEX (v))",
        "CREATE TABLE t (a int, vector vector(3))",
        "CREATE TABLE t (a int, vector varchar (3))",
    ],
)
def test_ddl_an_index_of_vectors_is_no_column(statement: str) -> None:
    read = read_statement(statement, "mariadb")
    assert isinstance(read, CreateTable)
    assert len(read.columns) == 2
    added = read_statement("ALTER TABLE t ADD VECTOR (v) DISTANCE=cosine, ADD VECTOR near (v), ADD b int", "mariadb")
    assert isinstance(added, AlterTable)
    assert len(added.items) == 1


@pytest.mark.parametrize("name", ["t.a", "d.t.a", ".a", "`d`.`t`.`a`", "d.1t.a"])
def test_ddl_a_column_may_have_its_table_before_it(name: str) -> None:
    read = read_statement(
        f"ALTER TABLE .t DROP {name}, CHANGE {name} {name} int, MODIFY {name} int, ALTER {name} SET DEFAULT 1",
        "mariadb",
    )
    assert isinstance(read, AlterTable)
    drop, change, modify, default = read.items
    assert isinstance(drop, DropColumn)
    assert isinstance(default, SetDefault)
    assert (drop.name, default.name) == ("a", "a")
    for item in (change, modify):
        assert isinstance(item, ChangeColumn)
        assert (item.name, item.definition.name) == ("a", "a")
    assert isinstance(read_statement(f"ALTER TABLE t DROP FOREIGN KEY {name}", "mysql"), AlterTable)
    made = read_statement("CREATE TABLE t (a int REFERENCES .p (id), FOREIGN KEY (a) REFERENCES .p (id))", "mysql")
    assert isinstance(made, CreateTable)
    assert {key.parent for key in made.foreign_keys} == {("", "p")}


def test_ddl_columns_that_a_mode_gives_other_types_are_not_read() -> None:
    read = read_statement("ALTER TABLE `order-items` ADD a DATE", "mariadb", ORACLE)
    assert isinstance(read, Unread)
    assert [name.table for name in read.names] == ["order-items"]


@pytest.mark.parametrize(
    ("actions", "lost"),
    [
        ("ADD UNIQUE (a)", True),
        ("ADD PRIMARY KEY (a)", True),
        ("ADD CONSTRAINT c CHECK (a > 0)", True),
        ("ADD (c int, UNIQUE (a))", True),
        ("ADD c int UNIQUE", True),
        ("MODIFY a tinyint", True),
        ("CONVERT TO CHARACTER SET latin1", True),
        ("PARTITION BY HASH (a)", True),
        ("ADD c int", False),
        ("ADD COLUMN IF NOT EXISTS c int, ADD KEY (a), COMMENT='x', RENAME COLUMN b TO d", False),
    ],
)
def test_ddl_alter_ignore_may_delete_rows(actions: str, lost: bool) -> None:
    ignoring = read_statement(f"ALTER IGNORE TABLE t {actions}", "mariadb", 1 << 22)
    assert isinstance(ignoring, AlterTable)
    assert (bool(ignoring.rows_lost), ignoring.strict) == (lost, False)
    usual = read_statement(f"ALTER TABLE t {actions}", "mariadb", 1 << 22)
    assert isinstance(usual, AlterTable)
    assert (usual.rows_lost, usual.strict) == ((), True)


@pytest.mark.parametrize(
    ("phase", "columns"),
    [(b"", 2), (b"\x82\x02", 1), (b"\x82\x04" + bytes(8), 2), (b"\x82\x08" + bytes(8), 1)],
    ids=["one", "start", "commit", "rollback"],
)
def test_ddl_an_alter_in_two_phases_counts_where_it_commits(tmp_path: Path, phase: bytes, columns: int) -> None:
    history = TableHistory(tmp_path / "schema.jsonl", lambda *_: True)
    table = TableSchema(database="shop", table="t", charset="utf8mb4", columns=(DeclaredColumn(name="a", type="int"),))
    history.seed(SchemaSnapshot(DdlServerFacts(flavour="mariadb", charset="utf8mb4"), (), (table,)), START)
    make = EventFactory()
    status = b"\x83\x01\x08\x00\x2f\x00" + phase + b"\x04\x2d\x00\x08\x00\x08\x00"
    begin, event = make.mariadb_gtid(1, flags=1), make.query("ALTER TABLE t ADD b int", status=status)
    assert parse_query(event, 4).session.connection == "latin1", "what stands behind MariaDB's own variables is read"
    blocks = feed(Scanner(start=START, history=history, captured=lambda *_: True), [begin, event])
    changes: list[TableChange] = [change for block in blocks for change in block.changes]
    assert sum(block.transaction_count for block in blocks) == 1
    assert bool(changes) == (columns == 2)
    state = history.state("shop", "t", Position(epoch=START.epoch, file=START.file, offset=1 << 20))
    assert isinstance(state, TableSchema)
    assert len(state.columns) == columns
