"""Applies the JSON differences (PARTIAL_JSON) of a chunk of rows and returns the resulting documents as texts. Called by `decoder` and
`entries.rows`.

The kernels of `locate_diffs` list the differences in an int64 array, which the functions of this file get as `differences`. The array has
one column per difference, with four numbers: the value's slot (its index among the decoded columns) and row, and the offset and size of the
document in the before image.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.cdc_engine.binlog.column_types import documents as printing
from sluice.cdc_engine.binlog.column_types.entry import AnyArray, ValueRefusedError, Values
from sluice.cdc_engine.binlog.documents import json_diff, statuses
from sluice.cdc_engine.binlog.documents.changes import print_changes
from sluice.cdc_engine.binlog.documents.containers import STACK_SHAPE
from sluice.cdc_engine.binlog.documents.jsonb import JsonFormatError
from sluice.cdc_engine.binlog.documents.trees import NODE_FIELDS
from sluice.cdc_engine.binlog.located_values import LocatedValues
from sluice.cdc_engine.binlog.rows.locate_diffs import BEFORE_SIZE, BEFORE_START, DIFFERENCE_ROWS, ROW, SLOT
from sluice.cdc_engine.contracts import Bytes, Int32s, Int64s

DIFFERENCES_MAX = 1 << 12  # The maximum number of differences in a chunk. A chunk with more differences ends early.
# The number of nodes that is allocated first for the tree of a document. For a document with more nodes, the number is doubled until they
# fit.
NODES_MIN = 1 << 10


def room(columns: int) -> Int64s:
    """Allocates the array for the differences of a chunk. The array is large enough for a row in which the values of all columns are
    differences.
    """
    return np.empty((DIFFERENCE_ROWS, max(DIFFERENCES_MAX, columns)), np.int64)


def of_column(differences: Int64s, slot: int) -> Int64s:
    # A chunk without differences needs no comparison, and most chunks have no differences.
    return differences[:, differences[SLOT] == slot] if differences.shape[1] else differences


def without(values: Values, differences: Int64s) -> Values:
    """Returns `values` with NULL in the rows that have differences."""
    starts, sizes = values.starts.copy(), values.sizes.copy()
    starts[differences[ROW]], sizes[differences[ROW]] = -1, 0
    return Values(values.buffer, starts, sizes)


def documents(values: Values, differences: Int64s) -> AnyArray:
    """Applies differences to the documents in the before images. Returns the resulting documents as texts, in the order of `differences`.
    Raises ValueRefusedError for a difference that cannot be applied.
    """
    rows, starts, sizes = (np.ascontiguousarray(differences[field]) for field in (ROW, BEFORE_START, BEFORE_SIZE))
    absent = np.flatnonzero(starts < 0)
    if len(absent):
        raise ValueRefusedError(
            int(rows[absent[0]]),
            "is logged as differences from a JSON document, but the column is NULL in the before image",
        )
    logged = Values(values.buffer, values.starts[rows], values.sizes[rows])
    before, changes = LocatedValues(starts, sizes), LocatedValues(logged.starts, logged.sizes)
    nodes, stack = np.empty((NODES_MIN, NODE_FIELDS), np.int64), np.empty(STACK_SHAPE, np.int64)

    def print_from(row: int, offsets: Int32s, text: Bytes) -> tuple[int, int]:
        nonlocal nodes
        while True:
            status, row = print_changes(values.buffer, before, changes, row, offsets, text, nodes, stack)
            if status != statuses.NODES:
                return status, row
            nodes = np.empty((2 * len(nodes), NODE_FIELDS), np.int64)

    def otherwise(_status: int, row: int) -> bytes:
        document = values.buffer[starts[row] : starts[row] + sizes[row]].tobytes()
        return _changed(document, logged.value(row), row)

    try:
        return printing.printed(logged, int(sizes.sum() + logged.sizes.sum()), print_from, otherwise)
    except ValueRefusedError as error:
        raise ValueRefusedError(int(rows[error.row]), error.reason) from None


def _changed(document: bytes, differences: bytes, row: int) -> bytes:
    """Applies differences to a document in Python, for a row that the kernel cannot process. Raises ValueRefusedError if they cannot be
    applied.
    """
    try:
        return json_diff.changed(document, differences).encode()
    except JsonFormatError as error:
        reason = f"has a JSON difference that cannot be applied: {error}"
        raise ValueRefusedError(row, reason) from None


def joined(others: AnyArray, differences: Int64s, texts: AnyArray) -> AnyArray:
    """Returns a JSON column in which some rows were logged as differences. These rows get the resulting documents `texts`, and all other
    rows keep their values in `others`. `differences` must be in ascending order of rows.
    """
    chosen = np.zeros(len(others), bool)
    chosen[differences[ROW]] = True
    column: AnyArray = pc.replace_with_mask(others, pa.array(chosen), texts)
    return column
