"""Tests that entries of Canal become typed changes and Arrow tables."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys

import pyarrow as pa
import pytest

from sluice.canal_client import Batch, CanalProtocolError, RowChange, Statement, TransactionBegin, TransactionEnd
from tests.canal_client.fix_served import ALTER, DELETE, INSERT, UPDATE, entry, image


def batch(*entries: bytes) -> Batch:
    return Batch(1, entries, lambda _batch, _well: None)


ROW = [("id", "int", "1"), ("note", "varchar(20)", None)]
NEW = [("id", "int", "1"), ("note", "varchar(20)", "neu")]
INSERTED = entry({"eventType": INSERT, "rowDatas": [{"afterColumns": image(ROW, updated=("id", "note"))}]})
UPDATED = entry(
    {"eventType": UPDATE, "rowDatas": [{"beforeColumns": image(ROW), "afterColumns": image(NEW, updated=("note",))}]}
)
DELETED = entry({"eventType": DELETE, "rowDatas": [{"beforeColumns": image(NEW)}]})
ALTERED = entry({"eventType": ALTER, "isDdl": True, "sql": "ALTER TABLE orders …", "ddlSchemaName": "shop"})


def test_a_canal_batch_is_typed_changes_in_order() -> None:
    begin, end = entry({"threadId": 7}, kind=1), entry({"transactionId": "42"}, kind=3)
    found = list(batch(begin, INSERTED, UPDATED, DELETED, ALTERED, end).everything())
    first, insert, update, delete, statement, last = found
    assert isinstance(first, TransactionBegin)
    assert isinstance(last, TransactionEnd)
    assert (first.thread, last.transaction) == (7, "42")
    assert isinstance(insert, RowChange)
    assert (insert.kind, insert.before, insert.after) == ("insert", None, {"id": 1, "note": None})
    assert (insert.database, insert.table, insert.key) == ("shop", "orders", ("id",))
    assert isinstance(update, RowChange)
    assert (update.before, update.row) == ({"id": 1, "note": None}, {"id": 1, "note": "neu"})
    assert update.updated == {"note"}
    assert isinstance(delete, RowChange)
    assert (delete.kind, delete.after, delete.row) == ("delete", None, {"id": 1, "note": "neu"})
    assert isinstance(statement, Statement)
    assert (statement.kind, statement.ddl, statement.sql) == ("ALTER", True, "ALTER TABLE orders …")
    assert statement.position.time == dt.datetime(2020, 9, 13, 12, 26, 40, tzinfo=dt.UTC)
    assert (statement.position.file, statement.position.offset) == ("bin.000001", 4)


def test_a_canal_batch_is_an_arrow_table_for_each_source_table() -> None:
    other = entry({"eventType": INSERT, "rowDatas": [{"afterColumns": image([("id", "int", "9")])}]}, table="items")
    tables = batch(INSERTED, UPDATED, other, DELETED, ALTERED).to_arrow()
    assert [*tables] == ["shop.orders", "shop.items"]
    orders = tables["shop.orders"]
    assert orders["_change_type"].to_pylist() == ["insert", "update_preimage", "update_postimage", "delete"]
    assert orders["id"].to_pylist() == [1, 1, 1, 1]
    assert orders["note"].to_pylist() == [None, None, "neu", "neu"]
    assert orders.schema.field("id").type == pa.int32()
    assert orders["_offset"].to_pylist() == [4] * 4
    assert tables["shop.items"].num_rows == 1


def test_a_canal_column_that_comes_late_is_null_before_and_one_that_changes_its_type_is_text() -> None:
    late = [("id", "bigint", "2"), ("more", "int", "5")]
    entries = (INSERTED, entry({"eventType": INSERT, "rowDatas": [{"afterColumns": image(late)}]}))
    table = batch(*entries).to_arrow()["shop.orders"]
    assert table["id"].to_pylist() == ["1", "2"]
    assert table["more"].to_pylist() == [None, 5]
    assert table["note"].to_pylist() == [None, None]


def test_a_message_that_is_no_canal_entry_is_reported() -> None:
    with pytest.raises(CanalProtocolError, match="not an Entry"):
        list(batch(b"\xff\xff").everything())


def test_the_canal_client_comes_without_the_engine_and_what_it_may_not_need() -> None:
    heavy = ("sluice.cdc_engine", "numba", "numpy", "pyarrow", "kazoo")
    said = f"import sys, sluice.canal_client; print([m for m in sys.modules if m.startswith({heavy})])"
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
