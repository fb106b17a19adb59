"""Tests row filters and masks on decoded row events: updates that leave or enter the condition, keys, masks, and tables that stop because
they cannot be filtered.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.cdc_engine.binlog.row_rules.history_rows import ROW_END
from sluice.cdc_engine.binlog.row_rules.masks import ColumnMask, hashed
from sluice.cdc_engine.binlog.row_rules.rules import RowRules
from sluice.cdc_engine.binlog.rows.decoder import OPERATION, RowDecoder
from sluice.cdc_engine.binlog.rows.refused_values import ValuePolicy
from sluice.cdc_engine.contracts import Operation, RowEventKind, TableVersion
from sluice.cdc_engine.errors import TableStoppedError
from tests.binlog.rows.event_bytes import AMOUNT, ID, KEYLESS, NOTE, ORDERS, Row, block, event

INSERT, UPDATE, DELETE = RowEventKind.INSERT, RowEventKind.UPDATE, RowEventKind.DELETE
LARGE = RowRules(condition="amount >= 10")
SALT = "s3cret"


def mask(column: str, kind: str, **fields: Any) -> ColumnMask:
    return ColumnMask(column=column, kind=kind, salt=SALT if kind == "hash" else "", **fields)


def decoded(
    rules: RowRules, *events: tuple[RowEventKind, list[Row]], table: TableVersion = ORDERS, present: int | None = None
) -> list[tuple[Any, ...]]:
    """Returns (operation, values…) of each image that remains."""
    given_block = block([(table, kind, event(kind, images, present=present)) for kind, images in events])
    decoder = RowDecoder(table, policy=ValuePolicy(rules=rules))
    found: list[tuple[Any, ...]] = []
    for batch in decoder.chunks(given_block, np.arange(len(events))):
        assert batch.schema == decoder.schema
        names = [OPERATION, *(column.name for column in decoder.columns)]
        found += [tuple(row[name] for name in names) for row in batch.select(names).to_pylist()]
    return found


def test_a_consumer_of_filtered_rows_sees_an_update_leave_and_enter() -> None:
    found = decoded(
        LARGE,
        (INSERT, [(1, 10, "a"), (2, 5, "b")]),
        (UPDATE, [(1, 10, "a"), (1, 11, "a")]),  # The row stays within the condition.
        (UPDATE, [(2, 5, "b"), (2, 6, "b")]),  # The row stays outside the condition.
        (UPDATE, [(1, 11, "a"), (1, 9, "a2")]),  # The row leaves the condition.
        (UPDATE, [(2, 6, "b"), (2, 20, "b2")]),  # The row enters the condition.
        (DELETE, [(2, 20, "b2"), (1, 9, "a2")]),
    )
    assert found == [(1, 1, 10, "a"), (3, 1, 11, "a"), (4, 1, 11, "a"), (1, 2, 20, "b2"), (4, 2, 20, "b2")]


def test_a_key_that_changes_within_outside_and_across_the_condition() -> None:
    found = decoded(
        LARGE,
        (UPDATE, [(1, 10, "a"), (7, 10, "a")]),
        (UPDATE, [(2, 10, "a"), (8, 1, "a")]),
        (UPDATE, [(3, 1, "a"), (9, 10, "a")]),
    )
    assert found == [(2, 1, 10, "a"), (3, 7, 10, "a"), (4, 2, 10, "a"), (1, 9, 10, "a")]


def test_a_log_of_changes_keeps_each_before_image_within_the_condition() -> None:
    found = decoded(LARGE, (UPDATE, [(1, 10, "a"), (1, 11, "a"), (2, 10, "b"), (2, 1, "b")]), table=KEYLESS)
    assert found == [(2, 1, 10, "a"), (3, 1, 11, "a"), (4, 2, 10, "b")]


def test_a_change_log_keeps_before_images_of_updates_that_change_something() -> None:
    given_block = block([(ORDERS, UPDATE, event(UPDATE, [(1, 10, None), (1, 11, None), (2, 10, None), (2, 10, None)]))])
    decoder = RowDecoder(ORDERS, policy=ValuePolicy(rules=LARGE), every_preimage=True)
    (batch,) = decoder.chunks(given_block, np.arange(1))
    assert list(zip(batch[OPERATION].to_pylist(), batch["amount"].to_pylist(), strict=True)) == [
        (2, 10),
        (3, 11),
        (3, 10),
    ]


def test_a_null_is_neither_within_nor_outside_and_so_not_captured() -> None:
    assert decoded(RowRules(condition="NOT amount > 5"), (INSERT, [(1, None, "a"), (2, 1, "b")])) == [(1, 2, 1, "b")]


ROW = st.tuples(st.integers(1, 3), st.one_of(st.none(), st.integers(8, 12)), st.just("x"))


@given(
    st.lists(
        st.one_of(st.tuples(st.just(INSERT), ROW), st.tuples(st.just(UPDATE), ROW), st.tuples(st.just(DELETE), ROW)),
        max_size=12,
    )
)
def test_a_lake_of_filtered_changes_is_the_filtered_table(wanted: list[tuple[RowEventKind, Row]]) -> None:
    """The model of a table is a dict. An empty lake to which the filtered images are applied must equal the rows of the table that match
    the condition.
    """
    table: dict[Any, Row] = {}
    events: list[tuple[RowEventKind, list[Row]]] = []
    for kind, row in wanted:
        old = next(iter(table.values()), None)
        if kind is INSERT and row[0] not in table:
            table[row[0]] = row
            events.append((kind, [row]))
        elif kind is UPDATE and old is not None and (row[0] == old[0] or row[0] not in table):
            del table[old[0]]
            table[row[0]] = row
            events.append((kind, [old, row]))
        elif kind is DELETE and row[0] in table:
            events.append((kind, [table.pop(row[0])]))
    lake: dict[Any, Row] = {}
    for operation, *values in decoded(LARGE, *events) if events else ():
        if operation in {Operation.DELETE, Operation.UPDATE_BEFORE}:
            del lake[values[0]]  # A missing row is never removed.
        else:
            assert (operation == Operation.INSERT) <= (values[0] not in lake)
            lake[values[0]] = tuple(values)
    assert lake == {key: row for key, row in table.items() if isinstance(row[1], int) and row[1] >= 10}


def test_masks_of_a_consumer_hash_truncate_and_empty_columns() -> None:
    rules = RowRules(masks=(mask("ID", "hash"), mask("amount", "null"), mask("note", "truncate", chars=2)))
    found = decoded(rules, (INSERT, [(1, 10, "äöü"), (2, None, None)]), (UPDATE, [(1, 10, "äöü"), (2, 10, "x")]))
    one, two = (hashlib.sha256(f"{SALT}{key}".encode()).hexdigest() for key in (1, 2))
    assert found == [
        (1, one, None, "äö"),
        (1, two, None, None),
        (2, one, None, "äö"),
        (3, two, None, "x"),
    ]


def test_a_masked_column_shows_neither_its_default_nor_its_length() -> None:
    reported = dataclasses.replace(
        ORDERS, columns=(ID, AMOUNT, dataclasses.replace(NOTE, default=("secret",), nullable=False))
    )
    rules = RowRules(masks=(mask("note", "hash"),))
    decoder = RowDecoder(reported, policy=ValuePolicy(rules=rules))
    assert (decoder.columns[2].default, decoder.columns[2].mysql_type, decoder.types[2].spark) == (
        (),
        "char(64)",
        "string",
    )
    assert decoder.shown_fill("note", "secret") == hashlib.sha256(f"{SALT}secret".encode()).hexdigest()
    assert decoder.shown_fill("id", "5") == "5"
    assert SALT not in repr(rules)


def test_the_condition_is_evaluated_before_the_mask() -> None:
    rules = RowRules(condition="note LIKE 'a%'", masks=(mask("note", "null"),))
    assert decoded(rules, (INSERT, [(1, 1, "abc"), (2, 2, "b")])) == [(1, 1, 1, None)]


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        (RowRules(condition="colour = 'red'"), "no column colour"),
        (RowRules(condition="note > 5"), "5 cannot be compared with column note"),
        (RowRules(masks=(mask("colour", "hash"),)), "masks the column colour, which the table does not have"),
        (RowRules(masks=(mask("id", "null"),)), "the column belongs to the key"),
        (RowRules(masks=(mask("id", "truncate", chars=1),)), "the column belongs to the key"),
        (RowRules(masks=(mask("amount", "truncate", chars=1),)), "truncate is for text and bytes only"),
    ],
)
def test_a_rule_that_does_not_fit_stops_the_table_by_name(rules: RowRules, why: str) -> None:
    with pytest.raises(TableStoppedError, match=why) as stopped:
        RowDecoder(ORDERS, policy=ValuePolicy(rules=rules))
    assert stopped.value.state == "ROWS_RULE"


def test_a_mask_may_say_that_its_column_is_missing() -> None:
    rules = RowRules(masks=(mask("colour", "hash", may_be_missing=True),))
    assert decoded(rules, (INSERT, [(1, 1, "a")])) == [(1, 1, 1, "a")]


def test_a_system_versioned_table_is_not_filtered() -> None:
    ends = dataclasses.replace(AMOUNT, name="ends", generated=ROW_END)
    versioned = dataclasses.replace(ORDERS, columns=(ID, AMOUNT, ends))
    with pytest.raises(TableStoppedError, match="system-versioned"):
        RowDecoder(versioned, policy=ValuePolicy(rules=LARGE))


@pytest.mark.parametrize(("kind", "images"), [(UPDATE, [(1, 10), (1, 11)]), (DELETE, [(1, 10)])])
def test_images_that_leave_columns_out_stop_a_filtered_table(kind: RowEventKind, images: list[Row]) -> None:
    """Without all columns, Sluice cannot know whether the row matches the condition. So the table stops, whichever column is absent."""
    with pytest.raises(TableStoppedError, match=r"binlog_row_image=FULL") as stopped:
        decoded(LARGE, (kind, images), present=0b011)
    assert stopped.value.state == "IMAGE_NOT_FULL"
    assert "rows" in stopped.value.reason


def test_digests_are_those_of_hashlib_for_every_length() -> None:
    texts = ["x" * size for size in (0, 1, 46, 47, 55, 56, 63, 64, 119, 120, 200)]
    values = pa.array([*texts, None, "ü€"]).slice(1)
    wanted = [hashlib.sha256(b"salt" + text.encode()).hexdigest() for text in texts[1:]]
    assert hashed(values, b"salt").to_pylist() == [*wanted, None, hashlib.sha256("saltü€".encode()).hexdigest()]
    assert hashed(pa.array([b"\xff\x00", None]), b"").to_pylist() == [hashlib.sha256(b"\xff\x00").hexdigest(), None]


@pytest.mark.parametrize(("masked", "reported"), [("note", False), ("amount", True)])
def test_an_undecodable_value_of_a_masked_column_is_not_shown(masked: str, reported: bool) -> None:
    rules = RowRules(masks=(mask(masked, "null"),))
    with pytest.raises(TableStoppedError) as stopped:
        decoded(rules, (INSERT, [(1, 1, "ab\udcff")]))
    assert stopped.value.state == "TYPE_UNSUPPORTED"
    assert ("because the value is masked" in stopped.value.reason) is not reported
