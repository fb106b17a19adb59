"""Tests that comments of the source's tables and columns reach the list of tables, from which Dagster makes assets, also after an ALTER."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from sluice.cdc_engine.instance.published_history import PublishedHistory
from sluice.cdc_engine.table_meta.history.history import TableHistory
from sluice.cdc_engine.table_meta.history.source.schema_snapshot import SchemaSnapshot
from sluice.cdc_engine.table_meta.schema import DdlServerFacts, TableSchema
from sluice.cdc_engine.table_meta.table_list.reading import read_comments, read_list, read_tables
from sluice.cdc_engine.table_meta.table_list.writing import TableListWriter
from tests.fix_ledgers import at

FACTS = DdlServerFacts(flavour="mysql", charset="utf8mb4")
EMPTY = SchemaSnapshot(FACTS, (("shop", "utf8mb4"),), ())
ORDERS = (
    "CREATE TABLE orders (id BIGINT PRIMARY KEY COMMENT 'the order''s number', total INT) COMMENT='orders of the shop'"
)


def opened(folder: Path) -> PublishedHistory:
    history = TableHistory(folder / "schema.jsonl", lambda database, _: database == "shop")
    return PublishedHistory(history, TableListWriter(folder), lambda: None)


@pytest.fixture
def history(tmp_path: Path) -> PublishedHistory:
    made = opened(tmp_path)
    made.seed(EMPTY, at(5))
    made.apply(ORDERS, "shop", at(10))
    return made


@pytest.mark.found
def test_comments_are_those_of_the_newest_statement(history: PublishedHistory, tmp_path: Path) -> None:
    """Defect 30: Dagster's pages showed no comment of the source's tables and columns."""
    assert read_comments(tmp_path) == {"shop.orders": {"": "orders of the shop", "id": "the order's number"}}
    (before,) = read_tables(tmp_path)
    changes = [
        *history.apply("ALTER TABLE orders COMMENT='sold', MODIFY total INT COMMENT 'in cents'", "shop", at(20)),
        *history.apply("ALTER TABLE orders MODIFY id BIGINT NOT NULL", "shop", at(30)),
    ]
    assert changes == [], "nothing changes for the lake"
    assert read_comments(tmp_path) == {"shop.orders": {"": "sold", "total": "in cents"}}
    assert read_tables(tmp_path) == (before,), "a comment is no part of a version"
    again = opened(tmp_path)
    again.rewind(at(20))
    again.publish(at(20))
    assert read_comments(tmp_path) == {"shop.orders": {"": "sold", "id": "the order's number", "total": "in cents"}}


def test_a_list_and_a_history_from_before_comments_are_read(history: PublishedHistory, tmp_path: Path) -> None:
    kept = history.state("shop", "orders", at(10))
    assert isinstance(kept, TableSchema)
    bare = kept.with_comments({})
    assert "comment" not in str(bare.to_json())
    assert TableSchema.from_json("shop", "orders", bare.to_json()).comments == {}
    history.seed(dataclasses.replace(EMPTY, tables=(bare,)), at(20))
    assert read_list(tmp_path).by_name["shop.orders"].comments == {}
    assert read_comments(tmp_path) == {}
    history.seed(dataclasses.replace(EMPTY, tables=(kept,)), at(30))
    assert read_comments(tmp_path) == {"shop.orders": kept.comments}
