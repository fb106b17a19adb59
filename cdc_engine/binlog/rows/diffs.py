"""JSON values of a chunk of rows that were logged as differences, as texts in their column. Called by `rows`.

The kernel has noted them (`rows_locate_diffs`): an int64 array, 4 by n: slot, row, start and size of the document before.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_engine.binlog.column_types.entry import AnyArray, ValueRefusedError, Values
from cdc_engine.binlog.documents import json_diff
from cdc_engine.binlog.documents.jsonb import JsonFormatError
from cdc_engine.binlog.rows.locate_diffs import BEFORE_SIZE, BEFORE_START, DIFFERENCE_ROWS, ROW, SLOT
from cdc_engine.contracts import Int64s

DIFFERENCES_MAX = 1 << 12  # of a chunk; more of them end it early


def room(columns: int) -> Int64s:
    """Where the kernel notes the differences of a chunk: enough for those of any row."""
    return np.empty((DIFFERENCE_ROWS, max(DIFFERENCES_MAX, columns)), np.int64)


def of_column(differences: Int64s, slot: int) -> Int64s:
    return differences[:, differences[SLOT] == slot]


def without(values: Values, differences: Int64s) -> Values:
    """The values with NULL where they are differences."""
    starts, sizes = values.starts.copy(), values.sizes.copy()
    starts[differences[ROW]], sizes[differences[ROW]] = -1, 0
    return Values(values.buffer, starts, sizes)


def documents(values: Values, differences: Int64s) -> list[str]:
    """The documents after the change, in the order of `differences`. Raises ValueRefusedError where one cannot be made."""
    texts: dict[tuple[bytes, bytes], str] = {}
    found = []
    for row, start, size in zip(*differences[[ROW, BEFORE_START, BEFORE_SIZE]].tolist(), strict=True):
        if start < 0:
            raise ValueRefusedError(row, "has differences from a JSON document, and is NULL before")
        pair = values.buffer[start : start + size].tobytes(), values.value(row)
        if pair not in texts:
            texts[pair] = _changed(row, *pair)
        found.append(texts[pair])
    return found


def _changed(row: int, document: bytes, differences: bytes) -> str:
    try:
        return json_diff.changed(document, differences)
    except JsonFormatError as error:
        raise ValueRefusedError(row, f"has differences from a JSON document that cannot be applied: {error}") from None


def joined(others: AnyArray, differences: Int64s, texts: list[str]) -> AnyArray:
    """The column's other values with the texts in the rows of the differences, which are ascending."""
    chosen = np.zeros(len(others), bool)
    chosen[differences[ROW]] = True
    column: AnyArray = pc.replace_with_mask(others, pa.array(chosen), pa.array(texts, others.type))
    return column
