"""Kernels that locate JSON differences in PARTIAL_UPDATE_ROWS events. Called by `locate_partial` and `entries.locate`.

The after image (MySQL's rows_event.h, Partial_update_rows_event) begins with the value options, a length-encoded integer. The only defined
bit of the options is PARTIAL_JSON. If this bit is set, a bitmap follows. The bitmap has a bit for every JSON column of the table, even if
the image omits the column. If the bit of a column is set, the column's value is not a document, but the differences from the document in
the before image.
"""
# ruff: noqa: PLR0917 - numba has no keyword-only arguments

from __future__ import annotations

import numpy as np

from sluice.cdc_engine.binlog.compiled import Integer, kernel
from sluice.cdc_engine.binlog.located_values import LocatedValues
from sluice.cdc_engine.binlog.rows.locate import TRUNCATED
from sluice.cdc_engine.contracts import Bytes, Int8s, Int32s, Int64s

PARTIAL_JSON = 1  # The only value option that MySQL defines.
DOCUMENT = 32  # A bit of `ImageColumns.facts`: the column is JSON. `locate_partial` defines the other bits.
OPTIONS_UNKNOWN = 5  # A result in addition to the results of `locate`: the event has an unknown value option.
# Rows of the array of differences: slot and row of the value, and offset and size of the document in the before image. BEFORE_START is -1
# if the document is NULL, and -2 if the before image omits it.
SLOT, ROW, BEFORE_START, BEFORE_SIZE = range(4)
DIFFERENCE_ROWS = 4


@kernel
def read_value_options(buffer: Bytes, at: Integer, end: Integer, facts: Int8s, partial: Int8s) -> Integer:
    """Reads the value options at `at`. Sets `partial` (one entry per column) to 1 for columns whose value consists of JSON differences, and
    to 0 for the other columns. Returns the offset after the options. After an error, returns -TRUNCATED or -OPTIONS_UNKNOWN instead.
    """
    partial[:] = 0
    if at + 1 > end:
        return -TRUNCATED
    options = buffer[at]
    if options > PARTIAL_JSON:
        return -OPTIONS_UNKNOWN
    at += 1
    if options == 0:
        return at
    index = np.int64(0)
    for column in range(facts.shape[0]):
        if facts[column] & DOCUMENT:
            if at + (index >> 3) >= end:
                return -TRUNCATED
            partial[column] = (np.int64(buffer[at + (index >> 3)]) >> (index & 7)) & 1
            index += 1
    return at + ((index + 7) >> 3)


@kernel
def note_differences(
    partial: Int8s,
    slot: Int32s,
    starts: Int64s,
    row: Integer,
    before: LocatedValues,
    differences: Int64s,
    found: Integer,
) -> Integer:
    """Adds an entry to `differences` for each value of row `row` that consists of JSON differences. `found`: the number of entries before
    the call. Returns the new number of entries.
    """
    for column in range(partial.shape[0]):
        wanted = slot[column]
        if partial[column] and wanted >= 0 and starts[wanted, row] >= 0:
            differences[SLOT, found], differences[ROW, found] = wanted, row
            differences[BEFORE_START, found] = before.starts[wanted, 0]
            differences[BEFORE_SIZE, found] = before.sizes[wanted, 0]
            found += 1
    return found


@kernel
def column_without_document(partial: Int8s, slot: Int32s, before: Int8s, after: Int8s) -> Integer:
    """Returns the index of the first decoded column (`slot` is not -1) whose value consists of JSON differences, although the before image
    omits the document. Returns -1 if there is no such column.
    """
    for column in range(partial.shape[0]):
        if partial[column] and slot[column] >= 0 and after[column] and not before[column]:
            return column
    return -1
