"""Tests the published list of tables after each statement. The list equals a list of all tables of the history, although a statement looks
only at the tables that it changes.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from sluice.cdc_engine.errors import MetaError
from sluice.cdc_engine.instance.published_history import PublishedHistory
from sluice.cdc_engine.records.location import as_location
from sluice.cdc_engine.table_meta.history.history import TableHistory
from sluice.cdc_engine.table_meta.history.source.schema_snapshot import SchemaSnapshot
from sluice.cdc_engine.table_meta.schema import DdlServerFacts
from sluice.cdc_engine.table_meta.table_list import reading
from sluice.cdc_engine.table_meta.table_list.reading import list_store, read_list, read_tables
from sluice.cdc_engine.table_meta.table_list.values import TableList
from sluice.cdc_engine.table_meta.table_list.writing import TableListWriter
from tests.fix_ledgers import at

STATEMENTS = (
    "CREATE TABLE orders (id INT PRIMARY KEY, total INT)",
    "CREATE TABLE items (id INT PRIMARY KEY, n INT, FOREIGN KEY (id) REFERENCES orders (id) ON DELETE CASCADE)",
    "CREATE TABLE other.items (id INT PRIMARY KEY)",
    "CREATE TABLE other.child (id INT PRIMARY KEY, FOREIGN KEY (id) REFERENCES shop.orders (id) ON DELETE CASCADE)",
    "ALTER TABLE items ADD CONSTRAINT two FOREIGN KEY (id) REFERENCES other.child (id) ON DELETE CASCADE",  # It lists other.child.
    "ALTER TABLE orders COMMENT 'sold'",
    "ALTER TABLE orders MODIFY id BIGINT NOT NULL",  # Its foreign keys change: the types of parent and child differ.
    "ALTER TABLE items ADD COLUMN more INT, DROP COLUMN n",
    "ALTER TABLE orders ADD COLUMN p POINT",
    "RENAME TABLE items TO goods",
    "CREATE TABLE notes (id INT PRIMARY KEY)",
    "ALTER TABLE notes ADD COLUMN x NO_SUCH_TYPE",  # It stops the table.
    "DROP TABLE other.child",
    "DROP TABLE goods, notes",
    "DROP DATABASE shop",
)


CHANGING = 13  # The number of statements that change the list.


def opened(folder: Path, kept: Path) -> PublishedHistory:
    history = TableHistory(kept / "schema.jsonl", lambda database, _: database == "shop")
    return PublishedHistory(history, TableListWriter(folder), lambda: None)


@pytest.fixture
def history(tmp_path: Path) -> PublishedHistory:
    made = opened(tmp_path, tmp_path)
    made.seed(SchemaSnapshot(DdlServerFacts(flavour="mysql", charset="utf8mb4"), (("shop", "utf8mb4"),), ()), at(5))
    return made


def of_all_tables(tmp_path: Path, position: int) -> TableList:
    """Returns the list of all tables at a position. A history that is loaded from the file of the schema history publishes this list."""
    folder = tmp_path / f"anew.{position}"
    folder.mkdir()
    opened(folder, tmp_path).publish(at(position))
    return read_list(folder)


def read_again(folder: Path) -> TableList:
    """Returns the list as a new process reads it, which has nothing of the list in memory."""
    reading._read.clear()
    return read_list(folder)


def test_the_list_after_each_statement_is_that_of_all_tables(history: PublishedHistory, tmp_path: Path) -> None:
    lists = list[TableList]()
    for position, statement in enumerate(STATEMENTS, start=10):
        history.apply(statement, "shop", at(position))
        wanted = of_all_tables(tmp_path, position)
        lists.append(wanted)
        assert read_again(tmp_path) == wanted, statement
        assert history.names == {each.name for each in wanted.tables}, statement
    assert sum(one != other for one, other in itertools.pairwise(lists)) == CHANGING - 1
    assert lists[-1] == TableList({})


def test_a_reader_that_follows_has_the_list_of_all_tables(history: PublishedHistory, tmp_path: Path) -> None:
    for position, statement in enumerate(STATEMENTS, start=10):
        history.apply(statement, "shop", at(position))
        there = read_list(tmp_path)
        assert there == read_again(tmp_path), statement


def test_a_statement_after_a_failed_write_lists_the_tables_of_both(
    history: PublishedHistory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history.apply(STATEMENTS[0], "shop", at(10))

    def refuses(*_: object, **__: object) -> None:
        raise MetaError("the store does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(list_store(as_location(tmp_path)), "write_all", refuses)
        with pytest.raises(MetaError):
            history.apply("CREATE TABLE notes (id INT PRIMARY KEY)", "shop", at(11))
    history.apply("CREATE TABLE items (id INT PRIMARY KEY)", "shop", at(12))
    assert [each.name for each in read_tables(tmp_path)] == ["shop.items", "shop.notes", "shop.orders"]
    assert read_again(tmp_path) == of_all_tables(tmp_path, 12)


def test_a_stream_that_goes_back_lists_the_tables_of_its_position(history: PublishedHistory, tmp_path: Path) -> None:
    for position, statement in enumerate(STATEMENTS[:7], start=10):
        history.apply(statement, "shop", at(position))
    history.rewind(at(11))
    history.apply("CREATE TABLE notes (id INT PRIMARY KEY)", "shop", at(12))
    assert read_again(tmp_path) == of_all_tables(tmp_path, 12)
    assert [each.name for each in read_tables(tmp_path)] == ["shop.items", "shop.notes", "shop.orders"]


def test_a_list_of_an_earlier_position_is_followed_by_that_of_all_tables(
    history: PublishedHistory, tmp_path: Path
) -> None:
    """A start writes the list at the acked position, while the history has a later statement."""
    history.apply(STATEMENTS[0], "shop", at(10))
    history.apply("CREATE TABLE later (id INT PRIMARY KEY)", "shop", at(20))
    again = opened(tmp_path, tmp_path)
    again.publish(at(10))
    assert [each.name for each in read_tables(tmp_path)] == ["shop.orders"]
    again.apply("CREATE TABLE notes (id INT PRIMARY KEY)", "shop", at(30))
    assert read_again(tmp_path) == of_all_tables(tmp_path, 30)
