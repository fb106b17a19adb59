"""Tests that every schema history that the parser may get keeps the promises of `ports.SchemaHistory`. All of them run the same tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.cdc_engine.binlog.events.table_map import TableMap
from sluice.cdc_engine.binlog.type_codes import TypeCode
from sluice.cdc_engine.errors import TableStoppedError
from sluice.cdc_engine.instance.published_history import PublishedHistory
from sluice.cdc_engine.ports import SchemaHistory
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.records.sql import SqlRecordStore
from sluice.cdc_engine.table_meta.history.history import TableHistory
from sluice.cdc_engine.table_meta.history.kept.repository import Repository
from sluice.cdc_engine.table_meta.history.kept.shared_repository import SharedRepository
from sluice.cdc_engine.table_meta.history.source.schema_snapshot import SchemaSnapshot
from sluice.cdc_engine.table_meta.schema import DdlServerFacts
from sluice.cdc_engine.table_meta.table_list.writing import TableListWriter

Opened = Callable[[], SchemaHistory]
EMPTY = SchemaSnapshot(DdlServerFacts(flavour="mysql", charset="utf8mb4"), (("shop", "utf8mb4"),), ())


def at(offset: int) -> Position:
    return Position(epoch=1, file="binlog.000001", offset=offset * 16)


def captured(database: str, _table: str) -> bool:
    return database == "shop"


def table_map(*names: str, table: str = "orders") -> TableMap:
    """Returns the table map of a table with int columns."""
    count = len(names)
    return TableMap(
        table_id=1,
        database="shop",
        table=table,
        type_codes=(TypeCode.LONG,) * count,
        metadata=(0,) * count,
        nullable=(True,) * count,
        names=names,
    )


@pytest.fixture(params=["file", "database", "published"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    """Opens the history of a destination as a process does when it starts. The stream begins at 10, and there are no tables yet."""
    kept: Path | Repository = tmp_path / "schema.jsonl"
    if request.param == "database":
        kept = SharedRepository(SqlRecordStore(f"sqlite:///{tmp_path / 'meta.db'}", "shop"))

    def again() -> SchemaHistory:
        history = TableHistory(kept, captured)
        if not history.covers(at(10)):
            history.seed(EMPTY, at(10))
        if request.param != "published":
            return history
        return PublishedHistory(history, TableListWriter(tmp_path), lambda: None)

    return again


CREATE, ADD = "CREATE TABLE orders (id int)", "ALTER TABLE orders ADD amount int"


def names(history: SchemaHistory, *columns: str, offset: int) -> list[str]:
    return [column.name for column in history.resolve(table_map(*columns), at(offset)).columns]


def test_ddl_rows_have_the_columns_of_their_position(opened: Opened) -> None:
    history = opened()
    assert [each.table for each in history.apply(CREATE, "shop", at(20))] == ["orders"]
    assert names(history, "id", offset=21) == ["id"]
    first = history.resolve(table_map("id"), at(22)).version
    history.apply(ADD, "shop", at(30))
    assert names(history, "id", "amount", offset=31) == ["id", "amount"]
    assert history.resolve(table_map("id", "amount"), at(32)).version != first


def test_ddl_a_statement_that_is_met_again_gives_the_same_changes(opened: Opened) -> None:
    history = opened()
    history.apply(CREATE, "shop", at(20))
    first = history.apply(ADD, "shop", at(30))
    assert first
    assert history.apply(ADD, "shop", at(30)) == first
    history.rewind(at(20))
    assert names(history, "id", offset=25) == ["id"]
    assert history.apply(ADD, "shop", at(30)) == first


def test_ddl_new_schemas_are_stored_before_they_are_reported(opened: Opened) -> None:
    """If the process ends immediately after `apply` returns, the next process still knows the new schema."""
    first = opened().apply(CREATE, "shop", at(20))
    assert first
    history = opened()
    assert names(history, "id", offset=21) == ["id"]
    assert history.apply(CREATE, "shop", at(20)) == first


def test_ddl_a_table_that_stopped_says_so_until_the_stream_goes_back(opened: Opened) -> None:
    history = opened()
    history.apply(CREATE, "shop", at(20))
    history.apply("ALTER TABLE orders ADD amount int DEFAULT (rand() * 10)", "shop", at(30))
    with pytest.raises(TableStoppedError, match="orders"):
        history.resolve(table_map("id", "amount"), at(31))
    with pytest.raises(TableStoppedError):
        opened().resolve(table_map("id", "amount"), at(32))
    history.rewind(at(25))
    assert names(history, "id", offset=26) == ["id"]


def test_ddl_of_others_tables_changes_nothing_here(opened: Opened) -> None:
    history = opened()
    history.apply(CREATE, "shop", at(20))
    assert history.apply("CREATE TABLE elsewhere.orders (a int)", "shop", at(30)) == ()
    assert history.apply("GRANT SELECT ON shop.* TO reader", "shop", at(40)) == ()
    assert names(history, "id", offset=41) == ["id"]


def test_cascades_are_those_of_the_stream_where_it_is_now(opened: Opened) -> None:
    history = opened()
    history.apply("CREATE TABLE orders (id int PRIMARY KEY)", "shop", at(20))
    child = "CREATE TABLE items (id int PRIMARY KEY, o int, FOREIGN KEY (o) REFERENCES orders (id) ON DELETE CASCADE)"
    history.apply(child, "shop", at(30))
    assert [each.child for each in history.cascades("shop", "orders")] == [("shop", "items")]
    assert (history.follows("shop", "items"), history.follows("shop", "orders")) == (True, False)
    history.rewind(at(25))
    assert history.cascades("shop", "orders") == ()
    assert not history.follows("shop", "items")


def test_ddl_rollbacks_undo_rows_of_engines_with_transactions(opened: Opened) -> None:
    history = opened()
    for number, engine in enumerate(("InnoDB", "RocksDB", "MyISAM", "HEAP", "Aria")):
        history.apply(f"CREATE TABLE {engine} (id int PRIMARY KEY) ENGINE={engine}", "shop", at(20 + number))
    undone = {name: history.is_undone("shop", name) for name in ("InnoDB", "RocksDB", "MyISAM", "HEAP", "Aria", "none")}
    assert undone == {"InnoDB": True, "RocksDB": True, "MyISAM": False, "HEAP": False, "Aria": False, "none": True}
    history.apply("ALTER TABLE InnoDB ENGINE=MyISAM", "shop", at(30))
    assert not history.is_undone("shop", "InnoDB")
    history.rewind(at(29))
    assert history.is_undone("shop", "InnoDB")
