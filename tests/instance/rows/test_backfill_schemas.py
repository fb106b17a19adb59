"""Tests which statements of an interval concern a table, and by which schema the rows of the interval are decoded."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from sluice.cdc_engine.instance.rows.schemas import IntervalSchemas, known_at
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.table_meta.ddl.declared_type import MYSQL
from sluice.cdc_engine.table_meta.dump.schemas import records_in
from sluice.cdc_engine.table_meta.history.kept.repository import HistoryRecord, RecordKind
from sluice.cdc_engine.table_meta.schema import DdlServerFacts, DeclaredColumn, TableSchema

NAMES = ("items", "orders")


def at(offset: int) -> Position:
    return Position(epoch=1, file="b.000001", offset=offset * 100)


def schema(table: str, *columns: str) -> TableSchema:
    declared = tuple(DeclaredColumn(name=name, type="int") for name in columns)
    return TableSchema(database="shop", table=table, columns=declared, key=("id",), charset="utf8mb4")


def record(offset: int, kind: RecordKind, table: TableSchema) -> HistoryRecord:
    return HistoryRecord(kind=kind, position=at(offset), database="shop", table=table.table, content=table.to_json())


HISTORY = [
    HistoryRecord(
        kind=RecordKind.SERVER,
        position=at(10),
        content=dataclasses.asdict(DdlServerFacts(flavour="mysql", charset="utf8mb4")),
    ),
    record(10, RecordKind.SNAPSHOT, schema("orders", "id")),
    record(20, RecordKind.DDL, schema("orders", "id", "note")),
    record(30, RecordKind.DDL, schema("items", "id")),
    record(90, RecordKind.DDL, schema("orders", "id", "note", "later")),
]


def schemas(start: int = 5) -> IntervalSchemas:
    return IntervalSchemas(HISTORY, at(50), at(start), lambda database, table: database == "shop" and table in NAMES)


def touched(statement: str, database: str = "shop") -> dict[str, list[str]]:
    there = schemas()
    assert there.apply(statement, database, at(7)) == ()
    return dict(there.statements)


def test_rows_are_read_by_the_schema_that_holds_where_the_lake_is_backfill() -> None:
    versions = schemas().versions()
    assert {name: [c.name for c in each.columns] for name, each in versions.items()} == {
        "shop.items": ["id"],
        "shop.orders": ["id", "note"],
    }


def test_the_positions_that_the_history_still_knows_are_shown_backfill() -> None:
    assert known_at(HISTORY, at(5)) == frozenset()
    assert known_at(HISTORY, at(25)) == {"shop.orders"}
    assert known_at(HISTORY, at(35)) == {"shop.orders", "shop.items"}


@pytest.mark.parametrize(
    ("statement", "tables"),
    [
        ("ALTER TABLE orders ADD COLUMN x INT", {"shop.orders"}),
        ("ALTER TABLE shop.orders DROP PARTITION p1", {"shop.orders"}),
        ("TRUNCATE TABLE orders", {"shop.orders"}),
        ("TRUNCATE other.orders", set()),
        ("DROP TABLE orders, items", {"shop.orders", "shop.items"}),
        ("RENAME TABLE orders TO old, new TO items", {"shop.orders", "shop.items"}),
        ("ALTER TABLE x RENAME TO orders", {"shop.orders"}),
        ("CREATE OR REPLACE TABLE orders (id INT PRIMARY KEY)", {"shop.orders"}),
        ("DROP DATABASE shop", {"shop.orders", "shop.items"}),
        ("DROP DATABASE other", set()),
        ("CREATE DATABASE shop", set()),
        ("CREATE TABLE x SELECT f(1)", {"shop.orders", "shop.items"}),
        ("CREATE TABLE x SELECT id FROM orders", set()),
        ("CREATE TEMPORARY TABLE x SELECT f(1)", {"shop.orders", "shop.items"}),
        ("CREATE TEMPORARY TABLE x SELECT id FROM orders", set()),
        ("ALTER DATABASE shop CHARACTER SET latin1", set()),
        ("CREATE OR REPLACE DATABASE shop", {"shop.orders", "shop.items"}),
        # The binlog contains the statement and no row images, so it is unknown which rows the statement changed.
        ("DELETE FROM orders", {"shop.orders", "shop.items"}),
        # The function may write any table.
        ("INSERT INTO elsewhere.t VALUES (elsewhere.f(1))", {"shop.orders", "shop.items"}),
        ("ALTER gibberish orders", {"shop.orders"}),
        ("ALTER TABLE orders ADD INDEX (note)", set()),
        ("CREATE INDEX i ON orders (note)", set()),
        ("ANALYZE TABLE orders", set()),
        ("CREATE TABLE orders (id INT PRIMARY KEY)", set()),  # No row of the table lies before the statement.
        ("CREATE TABLE IF NOT EXISTS orders (id INT PRIMARY KEY)", set()),
        ("GRANT SELECT ON shop.orders TO u", set()),
    ],
)
def test_a_statement_that_may_change_rows_or_columns_is_written_down_backfill(statement: str, tables: set[str]) -> None:
    found = touched(statement)
    assert set(found) == tables
    for reported in found.values():
        assert reported == [f"{statement} at b.000001:700"]


def test_an_unknown_setting_of_the_dumps_server_refuses_more_tables(tmp_path: Path) -> None:
    """The dump does not say whether its server folds names or uses binlog_format MIXED, so both are assumed. Rows from before an ALTER,
    and rows that a trigger may have written, are refused.
    """
    dump = tmp_path / "dump.sql"
    dump.write_text("USE `shop`;\nCREATE TABLE `orders` (`id` int);\nCREATE TABLE `items` (`id` int);\n")

    def found(statement: str, database: str) -> set[str]:
        records = records_in(dump, at(5), lambda _, table: table in NAMES, MYSQL)
        there = IntervalSchemas(records, at(50), at(5), lambda _, table: table in NAMES)
        assert set(there.versions()) == {"shop.orders", "shop.items"}
        assert there.apply(statement, database, at(7)) == ()
        return set(there.statements)

    assert found("ALTER TABLE Orders ADD COLUMN x INT", "SHOP") == {"shop.orders"}
    assert found("INSERT INTO elsewhere.view_of_orders VALUES (1)", "elsewhere") == {"shop.orders", "shop.items"}


def test_a_long_statement_is_shortened_in_the_message_backfill() -> None:
    ((reported, *_),) = touched(f"ALTER TABLE orders ADD COLUMN x{'y' * 300} INT").values()
    assert len(reported) < 120
    assert "… at b.000001:700" in reported


@pytest.mark.managed
@pytest.mark.parametrize(
    ("statement", "tables"),
    [
        ("INSERT INTO elsewhere.log VALUES (1)", {"shop.orders", "shop.items"}),
        ("INSERT INTO mysql.rds_heartbeat2(id, value) values (1, 2)", set()),
        # A view that the statement reads may call a function that writes.
        ("CREATE TABLE elsewhere.copy AS SELECT * FROM elsewhere.view_that_calls", {"shop.orders", "shop.items"}),
        ("CREATE TEMPORARY TABLE copy SELECT * FROM view_that_calls", {"shop.orders", "shop.items"}),
        ("CREATE TABLE elsewhere.copy (id INT)", set()),
    ],
)
def test_a_statement_may_reach_all_tables_if_triggers_are_followed_backfill(statement: str, tables: set[str]) -> None:
    """Triggers that the source had in the interval may be gone now, so any statement may have changed all tables. The server's own tables
    have no triggers.
    """
    objects = HistoryRecord(kind=RecordKind.OBJECTS, position=at(10), content={"complete": True})
    there = IntervalSchemas([*HISTORY, objects], at(50), at(5), lambda _, table: table in NAMES)
    assert there.apply(statement, "elsewhere", at(7)) == ()
    assert set(there.statements) == tables
