"""Tests that rows of a snapshot, a repair or a backfill follow the rules of conf/, as rows of the stream do."""

from __future__ import annotations

import hashlib
import io
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sluice.cdc_engine.binlog.result_rows.decoder import ResultDecoder
from sluice.cdc_engine.binlog.row_rules.masks import ColumnMask
from sluice.cdc_engine.binlog.row_rules.rules import RowRules
from sluice.cdc_engine.binlog.rows.decoder import RowDecoder
from sluice.cdc_engine.binlog.rows.refused_values import ValuePolicy
from sluice.cdc_engine.contracts import Int64s, RowEventKind
from sluice.cdc_engine.errors import TableStoppedError
from sluice.cdc_engine.snapshot.read import _row_groups
from tests.binlog.rows.event_bytes import ORDERS, block, event

ROWS = [(1, 10, "äb"), (2, 5, "c"), (3, None, "d"), (4, 12, None)]
POLICY = ValuePolicy(
    rules=RowRules(
        condition="amount >= 10",
        masks=(
            ColumnMask(column="id", kind="hash", salt="salt"),
            ColumnMask(column="note", kind="truncate", chars=1),
            ColumnMask(column="amount", kind="null"),
        ),
    )
)


def located(rows: list[tuple[Any, ...]]) -> tuple[np.typing.NDArray[np.uint8], Int64s, Int64s]:
    """Returns `rows` in the form of a query result: the bytes, and the starts and sizes of the values, by column and row."""
    data = io.BytesIO()
    starts, sizes = np.full((3, len(rows)), -1, np.int64), np.zeros((3, len(rows)), np.int64)
    for number, row in enumerate(rows):
        for slot, value in enumerate(row):
            if value is None:
                continue
            written = struct.pack("<i", value) if isinstance(value, int) else value.encode()
            starts[slot, number], sizes[slot, number] = data.tell(), len(written)
            data.write(written)
    return np.frombuffer(data.getvalue(), np.uint8), starts, sizes


def read(rows: list[tuple[Any, ...]], policy: ValuePolicy = POLICY) -> pa.RecordBatch:
    decoder = ResultDecoder(ORDERS, policy=policy)
    batch = decoder.batch(*located(rows))
    assert batch.schema == decoder.schema
    return batch


def test_rows_that_are_read_are_filtered_and_masked() -> None:
    one, four = (hashlib.sha256(f"salt{key}".encode()).hexdigest() for key in (1, 4))
    assert read(ROWS).to_pylist() == [
        {"id": one, "amount": None, "note": "ä"},
        {"id": four, "amount": None, "note": None},
    ]


def test_rows_that_are_read_are_those_that_the_stream_stages() -> None:
    """A publication joins buffered changes and chunks by their keys. So their values and types must be the same."""
    decoder = RowDecoder(ORDERS, policy=POLICY)
    streamed = block([(ORDERS, RowEventKind.INSERT, event(RowEventKind.INSERT, ROWS))])
    (batch,) = decoder.chunks(streamed, np.arange(1))
    found = read(ROWS)
    assert batch.select(found.schema.names) == found


def test_a_chunk_of_which_no_row_is_left_is_a_file_without_rows() -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield read([(2, 5, "c")])
        yield read([(3, 1, "c")])

    assert list(_row_groups(batches())) == []


def test_a_snapshot_of_a_table_that_the_rules_do_not_fit_stops_by_name() -> None:
    with pytest.raises(TableStoppedError, match="no column colour") as stopped:
        ResultDecoder(ORDERS, policy=ValuePolicy(rules=RowRules(condition="colour = 'red'")))
    assert stopped.value.state == "ROWS_RULE"
