"""Tests what a client of Canal's protocol gets of a table with rules: the same rows and values as the lake."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from sluice.canal_client import messages
from sluice.cdc_engine.binlog.entries.elements import ROWS
from sluice.cdc_engine.binlog.entries.messages import EntryMaker
from sluice.cdc_engine.binlog.entries.numbers import SqlType
from sluice.cdc_engine.binlog.entries.texts import Display
from sluice.cdc_engine.binlog.row_rules.masks import ColumnMask
from sluice.cdc_engine.binlog.row_rules.rules import RowRules
from sluice.cdc_engine.binlog.rows.refused_values import ValuePolicy
from sluice.cdc_engine.contracts import Block, Int8s, Int64s, RowEventKind, TableVersion
from sluice.cdc_engine.errors import ConsumerStoppedError
from sluice.cdc_engine.sink.column_filter import ColumnFilter
from tests.binlog.rows.event_bytes import ORDERS, Row, block, event

INSERT, UPDATE, DELETE = RowEventKind.INSERT, RowEventKind.UPDATE, RowEventKind.DELETE
AUDIT = dataclasses.replace(ORDERS, table="audit")


@dataclasses.dataclass(frozen=True)
class Part:
    block: Block
    kinds: Int8s
    indices: Int64s
    statement: None = None


def shown(
    rules: RowRules, *events: tuple[TableVersion, RowEventKind, Sequence[Row]], present: int | None = None
) -> list[tuple[str, int, list[tuple[dict[str, Any], dict[str, Any]]]]]:
    """Returns the table, the event type and the rows of each entry that a client gets. A row is a pair of the values before and after the
    change. `rules` apply to ORDERS.
    """
    made = block([(table, kind, event(kind, images, present=present)) for table, kind, images in events])
    maker = EntryMaker(Display(), lambda _: None, {"shop.orders": ValuePolicy(rules=rules)})
    part = Part(made, np.full(len(events), ROWS, np.int8), np.arange(len(events)))
    got: Any = messages.Messages.FromString(maker.messages([part]))
    found = []
    for data in got.messages:
        entry: Any = messages.Entry.FromString(data)
        change: Any = messages.RowChange.FromString(entry.storeValue)
        assert (entry.header.eventType, entry.header.props[0].value) == (change.eventType, str(len(change.rowDatas)))
        rows = [(values(each.beforeColumns), values(each.afterColumns)) for each in change.rowDatas]
        found.append((entry.header.tableName, change.eventType, rows))
    return found


def values(columns: Any) -> dict[str, Any]:
    return {column.name: None if column.isNull else column.value for column in columns}


def row(key: int, amount: int, note: str) -> dict[str, str]:
    return {"id": str(key), "amount": str(amount), "note": note}


def test_a_canal_client_gets_the_rows_within_the_condition() -> None:
    found = shown(
        RowRules(condition="amount >= 10"),
        (ORDERS, INSERT, [(1, 10, "a"), (2, 5, "b"), (3, 12, "c")]),
        (AUDIT, INSERT, [(9, 1, "x")]),
        (ORDERS, INSERT, [(4, 1, "d")]),
        (
            ORDERS,
            UPDATE,
            [
                (1, 10, "a"),
                (1, 11, "a"),
                (3, 12, "c"),
                (3, 1, "c"),
                (2, 5, "b"),
                (2, 50, "b"),
                (4, 1, "d"),
                (4, 2, "d"),
            ],
        ),
        (ORDERS, DELETE, [(4, 2, "d"), (2, 50, "b")]),
    )
    assert found == [
        ("orders", INSERT, [({}, row(1, 10, "a")), ({}, row(3, 12, "c"))]),
        ("audit", INSERT, [({}, row(9, 1, "x"))]),
        ("orders", UPDATE, [(row(1, 10, "a"), row(1, 11, "a"))]),
        ("orders", DELETE, [(row(3, 12, "c"), {})]),
        ("orders", INSERT, [({}, row(2, 50, "b"))]),
        ("orders", DELETE, [(row(2, 50, "b"), {})]),
    ]


def test_a_canal_client_gets_nothing_of_rows_outside_the_condition() -> None:
    assert shown(RowRules(condition="amount >= 10"), (ORDERS, INSERT, [(1, 1, "a")])) == []


def test_a_canal_client_gets_masked_columns() -> None:
    salted = hashlib.sha256(b"salt7").hexdigest()
    masks = (
        ColumnMask(column="id", kind="hash", salt="salt"),
        ColumnMask(column="amount", kind="null"),
        ColumnMask(column="note", kind="truncate", chars=1),
    )
    found = shown(RowRules(masks=masks), (ORDERS, UPDATE, [(7, 1, "äb"), (7, 2, "äc")]))
    masked = {"id": salted, "amount": None, "note": "ä"}
    assert found == [("orders", UPDATE, [(masked, masked)])]


def test_a_canal_client_gets_the_captured_columns_each_at_its_own_index() -> None:
    made = block([(ORDERS, UPDATE, event(UPDATE, [(7, 1, "secret"), (7, 2, "hidden")]))])
    rules = RowRules(masks=(ColumnMask(column="note", kind="truncate", chars=3, may_be_missing=True),))
    for exclude, found in (
        ("shop.orders:note", [(0, "id", "7"), (1, "amount", "2")]),
        ("SHOP.orders:id/amount", [(0, "id", "7"), (2, "note", "hid")]),
    ):
        kept = ColumnFilter(exclude=exclude).kept
        maker = EntryMaker(Display(), lambda _: None, {"shop.orders": ValuePolicy(rules=rules)}, kept)
        got = maker.messages([Part(made, np.full(1, ROWS, np.int8), np.arange(1))])
        read: Any = messages.Messages.FromString(got)
        change: Any = messages.RowChange.FromString(messages.Entry.FromString(read.messages[0]).storeValue)
        assert [(each.index, each.name, each.value) for each in change.rowDatas[0].afterColumns] == found
        assert b"secret" not in got


def test_a_canal_client_is_refused_masks_by_the_key_that_conf_says() -> None:
    made = block([(ORDERS, INSERT, event(INSERT, [(7, 1, "a")]))])
    policies = {
        "shop.orders": ValuePolicy(rules=RowRules(masks=(ColumnMask(column="note", kind="truncate", chars=1),)))
    }
    maker = EntryMaker(Display(), lambda _: None, policies, None, {"shop.orders": ("note",)})
    with pytest.raises(ConsumerStoppedError, match="the column belongs to the key"):
        maker.messages([Part(made, np.full(1, ROWS, np.int8), np.arange(1))])


def test_a_digest_is_a_varchar_and_what_does_not_differ_is_not_updated() -> None:
    made = block([(ORDERS, UPDATE, event(UPDATE, [(7, 1, "ab"), (7, 2, "ac")]))])
    masks = (ColumnMask(column="id", kind="hash", salt="s"), ColumnMask(column="note", kind="truncate", chars=1))
    maker = EntryMaker(Display(), lambda _: None, {"shop.orders": ValuePolicy(rules=RowRules(masks=masks))})
    got: Any = messages.Messages.FromString(maker.messages([Part(made, np.full(1, ROWS, np.int8), np.arange(1))]))
    change: Any = messages.RowChange.FromString(messages.Entry.FromString(got.messages[0]).storeValue)
    key, amount, note = change.rowDatas[0].afterColumns
    assert (key.sqlType, key.mysqlType, key.isKey) == (SqlType.VARCHAR, "char(64)", True)
    assert (key.updated, amount.updated, note.updated) == (False, True, False)


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        (RowRules(condition="colour = 'red'"), "no column colour"),
        (RowRules(masks=(ColumnMask(column="id", kind="null"),)), "the column belongs to the key"),
    ],
)
def test_a_canal_client_gets_the_reason_why_a_rule_does_not_fit(rules: RowRules, why: str) -> None:
    with pytest.raises(ConsumerStoppedError, match=why):
        shown(rules, (ORDERS, INSERT, [(1, 1, "a")]))


def test_a_canal_client_gets_no_guess_about_images_without_the_columns_of_the_condition() -> None:
    with pytest.raises(ConsumerStoppedError, match="the condition cannot be evaluated"):
        shown(RowRules(condition="note = 'a'"), (ORDERS, UPDATE, [(1, 1), (1, 2)]), present=0b011)
