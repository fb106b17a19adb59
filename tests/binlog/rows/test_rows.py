"""Tests how images of row events are converted: operations, order keys, before images, filters, and refusals."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.cdc_engine.binlog.rows import decoder as rows
from sluice.cdc_engine.binlog.rows.decoder import COMMIT_TIME, OPERATION, ORDER_KEY, RowDecoder
from sluice.cdc_engine.contracts import Block, Operation, RowEventKind, TableVersion
from sluice.cdc_engine.errors import BinlogFormatError, TableStoppedError
from sluice.cdc_engine.position import OFFSET_MAX, order_key
from tests.binlog.rows.event_bytes import KEYLESS, ORDERS, Row, block, event

INSERT, UPDATE, DELETE = RowEventKind.INSERT, RowEventKind.UPDATE, RowEventKind.DELETE


def decode(
    given_block: Block, version: TableVersion = ORDERS, kept: Sequence[int] | None = None
) -> list[dict[str, Any]]:
    decoder = RowDecoder(version, None if kept is None else np.array(kept, np.int32))
    batches = list(decoder.chunks(given_block, np.arange(given_block.event_count)))
    for batch in batches:
        batch.validate(full=True)
    return [row for batch in batches for row in batch.to_pylist()]


def one(kind: RowEventKind, images: Sequence[Row], table: TableVersion = ORDERS, version: int = 2) -> Block:
    return block([(table, kind, event(kind, images, version))], version=version)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("kind", "operation"), [(INSERT, Operation.INSERT), (DELETE, Operation.DELETE)])
def test_an_insert_and_a_delete_are_a_row_an_image(kind: RowEventKind, operation: Operation, version: int) -> None:
    found = decode(one(kind, [(1, 10, "a"), (2, None, None)], version=version))
    assert [(row["id"], row["amount"], row["note"], row[OPERATION]) for row in found] == [
        (1, 10, "a", operation),
        (2, None, None, operation),
    ]


def test_an_order_key_is_the_offset_of_the_transaction_in_the_file_identity() -> None:
    given_block = block(
        [(ORDERS, INSERT, event(INSERT, [(1, 10, "a"), (2, 20, "b")]))], start=1000, file="binlog.000007", epoch=3
    )
    located = dataclasses.replace(given_block, event_transaction_offset=np.array([960], np.int64))
    assert [row[ORDER_KEY] for row in decode(located)] == [order_key(3, 7, 960)] * 2


def test_a_position_without_an_order_key_is_an_error_identity() -> None:
    given_block = one(INSERT, [(1, 10, "a")])
    located = dataclasses.replace(given_block, event_transaction_offset=np.array([OFFSET_MAX + 1], np.int64))
    with pytest.raises(BinlogFormatError, match="do not fit an order key"):
        decode(located)


def test_a_commit_time_is_that_of_the_event() -> None:
    given_block = block(
        [(ORDERS, INSERT, event(INSERT, [(1, 1, "")])), (ORDERS, INSERT, event(INSERT, [(2, 2, ""), (3, 3, "")]))]
    )
    assert [row[COMMIT_TIME].timestamp() for row in decode(given_block)] == [1, 2, 2]


def test_an_update_that_leaves_the_key_is_its_postimage_alone() -> None:
    found = decode(one(UPDATE, [(1, 10, "a"), (1, 11, "b")]))
    assert [(row[OPERATION], row["id"], row["amount"]) for row in found] == [(Operation.UPDATE_AFTER, 1, 11)]


def test_an_update_of_the_key_gives_the_preimage_first() -> None:
    found = decode(one(UPDATE, [(1, 10, "a"), (2, 10, "a"), (5, 1, "x"), (5, 2, "x")]))
    assert [(row[OPERATION], row["id"]) for row in found] == [(2, 1), (3, 2), (3, 5)]


def test_a_table_without_a_key_gets_every_preimage() -> None:
    found = decode(one(UPDATE, [(1, 10, "a"), (1, 10, "b")], KEYLESS), KEYLESS)
    assert [(row[OPERATION], row["note"]) for row in found] == [(2, "a"), (3, "b")]


@pytest.mark.parametrize(
    ("before", "after", "rows_expected"),
    [("", "a", 2), ("", "", 1), ("ab", "aB", 2), ("ab", "ab", 1)],
)
def test_a_key_of_text_changes_with_its_bytes(before: str, after: str, rows_expected: int) -> None:
    table = TableVersion(database="shop", table="orders", columns=ORDERS.columns, key=("note",))
    assert len(decode(one(UPDATE, [(1, 1, before), (1, 1, after)], table), table)) == rows_expected


@pytest.mark.parametrize("images", [[(1, 1, None), (1, 1, "")], [(1, 1, ""), (1, 1, None)], [(1, 1, None)] * 2])
def test_a_key_that_is_null_stops_its_table_identity(images: list[Row]) -> None:
    table = TableVersion(database="shop", table="orders", columns=ORDERS.columns, key=("note",))
    with pytest.raises(TableStoppedError, match="several rows can have NULL in the key") as caught:
        decode(one(UPDATE, images, table), table)
    assert caught.value.state == "KEY_NULL"


def test_columns_left_out_by_a_filter_are_stepped_over() -> None:
    assert [sorted(row) for row in decode(one(INSERT, [(1, 10, "secret")]), kept=[0, 1])] == [
        sorted(["id", "amount", OPERATION, ORDER_KEY, COMMIT_TIME])
    ]


def test_a_key_column_that_is_filtered_out_stops_the_table() -> None:
    with pytest.raises(TableStoppedError, match=r"SCHEMA_MISMATCH.*id is not among"):
        RowDecoder(ORDERS, np.array([1, 2], np.int32))


def test_an_event_with_another_number_of_columns_stops_the_table() -> None:
    wrong = event(INSERT, [(1, 10)], columns=2)
    with pytest.raises(TableStoppedError, match=r"SCHEMA_MISMATCH.*binlog.000002:4 does not have the 3 columns"):
        decode(block([(ORDERS, INSERT, wrong)]))


@pytest.mark.parametrize("kind", [INSERT, UPDATE, DELETE])
def test_a_table_without_a_key_stops_where_an_image_leaves_columns_out_fidelity(kind: RowEventKind) -> None:
    wrong = event(kind, [(1, 10), (1, 11)], present=0b011)
    with pytest.raises(TableStoppedError, match=r"IMAGE_NOT_FULL.*the column note.*binlog_row_image=FULL"):
        decode(block([(KEYLESS, kind, wrong)]), KEYLESS)


def test_text_that_is_not_of_its_charset_stops_the_table_and_the_reason_names_column_and_position() -> None:
    with pytest.raises(
        TableStoppedError,
        match=r"TYPE_UNSUPPORTED.*column note .*binlog.000002:\d+ is not text in utf8",
    ):
        decode(one(INSERT, [(1, 1, "fine"), (2, 2, "\udcff\udcfe")]))


# 26 missing bytes are left out, because the event is then valid and has no rows.
@pytest.mark.parametrize("missing", [missing for missing in range(1, 40) if missing != 26])
def test_a_truncated_event_is_a_format_error_with_its_position(missing: int) -> None:
    whole = event(UPDATE, [(1, 10, "abc"), (1, 11, "def")])
    with pytest.raises(BinlogFormatError) as caught:
        decode(block([(ORDERS, UPDATE, whole[: len(whole) - missing])]))
    assert (caught.value.file, caught.value.offset) == ("binlog.000002", 4)


def test_an_event_that_ends_after_the_buffer_is_a_format_error() -> None:
    given_block = one(INSERT, [(1, 1, "")])
    given_block.event_length[0] += 1
    with pytest.raises(BinlogFormatError, match="ends within a value"):
        decode(given_block)


def test_rows_beyond_a_chunk_continue_in_the_next_without_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "CHUNK_ROWS_MAX", 7)
    images: list[Row] = [(number // 2, number, "x" * (number % 50)) for number in range(200)]
    found = decode(one(UPDATE, images, KEYLESS), KEYLESS)
    assert [(row["id"], row["amount"], row["note"]) for row in found] == images


def test_one_image_larger_than_a_chunk_still_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "CHUNK_BYTES_MAX", 1)
    assert [row["id"] for row in decode(one(INSERT, [(1, 1, "a" * 80), (2, 2, "b" * 80)]))] == [1, 2]


values = st.integers(-(1 << 31), (1 << 31) - 1) | st.none()
image_rows = st.tuples(values, values, st.text(max_size=20) | st.none())


@given(st.lists(st.tuples(st.sampled_from([INSERT, DELETE]), st.lists(image_rows, max_size=8)), max_size=6))
def test_any_rows_come_back_as_they_went_in(events: list[tuple[RowEventKind, list[Row]]]) -> None:
    given_block = block([(KEYLESS, kind, event(kind, images)) for kind, images in events])
    found = decode(given_block, KEYLESS)
    assert [(row["id"], row["amount"], row["note"]) for row in found] == [row for _, images in events for row in images]


def test_chunks_of_no_events_are_none() -> None:
    assert not decode(block([]))


def test_the_schema_is_that_of_the_batches() -> None:
    decoder = RowDecoder(ORDERS)
    assert decoder.schema.field("note").type == pa.string()
    assert [column.spark for column in decoder.types] == ["int", "int", "string"]
