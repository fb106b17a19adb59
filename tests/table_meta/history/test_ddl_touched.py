"""Tests for each statement which tables may have other columns after it."""

from __future__ import annotations

import pytest

from sluice.cdc_engine.contracts import NO_SESSION, LoggedStatement
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.sink.table_filter import TableFilter
from sluice.cdc_engine.table_meta.ddl.declared_type import MYSQL
from sluice.cdc_engine.table_meta.history.changed_tables import TouchedTables, changed_by
from sluice.cdc_engine.table_meta.history.source.schema_snapshot import SchemaSnapshot
from sluice.cdc_engine.table_meta.schema import DdlServerFacts, TableSchema

POSITION = Position(epoch=1, file="binlog.000001", offset=4)
SERVER = DdlServerFacts(flavour=MYSQL, charset="utf8mb4")
ORDERS, ITEMS, OTHER = ("shop", "orders"), ("shop", "items"), ("depot", "items")


def touched(statement: str, server: DdlServerFacts = SERVER) -> TouchedTables:
    tables = tuple(
        TableSchema(database=key[0], table=key[1], charset="utf8mb4", columns=(), key=())
        for key in (ORDERS, ITEMS, OTHER)
    )
    found = TouchedTables(SchemaSnapshot(server, databases=(), tables=tables))
    assert found.apply(statement, "shop", POSITION) == ()
    return found


@pytest.mark.parametrize(
    ("statement", "names"),
    [
        ("ALTER TABLE orders ADD COLUMN note TEXT", {ORDERS}),
        ("ALTER TABLE depot.items MODIFY a INT AFTER b", {OTHER}),
        ("ALTER TABLE orders ADD INDEX (a)", set()),
        ("CREATE INDEX by_a ON orders (a)", set()),
        ("ALTER TABLE orders RENAME TO archive", {ORDERS, ("shop", "archive")}),
        ("CREATE TABLE orders (a INT)", {ORDERS}),
        ("CREATE TABLE IF NOT EXISTS orders LIKE items", set()),
        ("CREATE TABLE IF NOT EXISTS orders (a INT) SELECT f() AS a", {ORDERS}),
        ("RENAME TABLE orders TO items, depot.items TO orders", {ORDERS, ITEMS, OTHER}),
        ("DROP TABLE orders, depot.items", {ORDERS, OTHER}),
        ("DROP DATABASE shop", {ORDERS, ITEMS}),
        ("ALTER DATABASE shop CHARACTER SET latin1", set()),
        ("TRUNCATE TABLE orders", set()),
        ("ANALYZE TABLE orders", set()),
        ("ALTER TABLE orders SOMETHING NOBODY KNOWS", {ORDERS}),
        ("FROB depot ITEMS", {ITEMS, OTHER}),
    ],
)
def test_ddl_tables_that_a_statement_may_change(statement: str, names: set[tuple[str, str]]) -> None:
    found = touched(statement)
    assert found.names >= names
    left = {(schema.database, schema.table) for schema in found.left().tables}
    assert left == {ORDERS, ITEMS, OTHER} - names


@pytest.mark.parametrize(
    ("statements", "unknown"),
    [
        (("ALTER TABLE orders ADD COLUMN note TEXT",), {ORDERS}),
        (("ALTER TABLE orders ADD COLUMN note TEXT, RENAME TO orders",), {ORDERS}),
        (("ALTER TABLE orders ADD COLUMN note TEXT, RENAME TO shop.orders",), {ORDERS}),
        (("CREATE TABLE orders (a INT)", "ALTER TABLE orders ADD COLUMN note TEXT"), set()),
        (("CREATE TABLE IF NOT EXISTS orders (a INT)",), set()),
        (("CREATE TABLE IF NOT EXISTS orders (a INT)", "DROP TABLE orders"), {ORDERS}),
        (("CREATE OR REPLACE TABLE orders (a INT)",), {ORDERS}),
        (("DROP TABLE orders", "CREATE TABLE orders (a INT)"), {ORDERS}),
        (("ALTER TABLE orders RENAME TO archive", "ALTER TABLE archive ADD COLUMN note TEXT"), {ORDERS}),
        (("RENAME TABLE orders TO spare, items TO orders, spare TO items",), {ORDERS, ITEMS}),
        (("FROB depot ITEMS",), {ITEMS, OTHER}),
        (("TRUNCATE TABLE orders",), set()),
    ],
)
def test_ddl_tables_that_may_have_been_there_before_stay_known_by_name(
    statements: tuple[str, ...], unknown: set[tuple[str, str]]
) -> None:
    found = touched(statements[0])
    for number, statement in enumerate(statements[1:], start=1):
        found.apply(statement, "shop", Position(epoch=1, file="binlog.000001", offset=4 + number))
    assert set(found.left().unknown_tables) == unknown


def test_ddl_names_are_folded_where_the_server_folds_them() -> None:
    folding = DdlServerFacts(flavour=MYSQL, charset="utf8mb4", lower_case_names=True)
    assert touched("ALTER TABLE Orders DROP COLUMN a", folding).names == {ORDERS}
    assert touched("ALTER TABLE Orders DROP COLUMN a").names == {("shop", "Orders")}


@pytest.mark.parametrize(
    ("statement", "changed"),
    [
        ("ALTER TABLE orders ADD COLUMN note TEXT", "shop.orders"),
        ("ALTER TABLE depot.items MODIFY a INT", ""),
        ("RENAME TABLE depot.items TO shop.Orders", "shop.Orders"),
        ("ALTER TABLE orders ADD INDEX (a)", ""),
        ("DROP TEMPORARY TABLE orders", ""),
        ("GRANT SELECT ON shop.orders TO one", ""),
        ("TRUNCATE TABLE orders", ""),
        ("DROP DATABASE depot", "all tables of depot"),
        ("FROB depot ITEMS", "tables whose names could not be read"),
    ],
)
def test_ddl_the_captured_table_that_a_logged_statement_changes_failover(statement: str, changed: str) -> None:
    logged = LoggedStatement(
        text=statement, database="shop", offset=4, length=40, seconds=0, server=1, session=NO_SESSION
    )
    assert changed_by(TableFilter(r"shop\..*").keeps, logged) == changed
