"""Kernel that finds the column values in the row events of one table version. Called by `decoder`.

A row event (MySQL's rows_event.h) has: a 19-byte common header; table id (6) and flags (2); from version 2 on, an extra part that begins
with its length (2 bytes, included in the length); the column count, length-encoded; a bitmap of the present columns, or for an update two
bitmaps; then row images up to the end. An image is a bitmap of NULLs and the values that are not NULL, back to back.

For each column, the kernel needs only the number of length bytes before a value (`prefix`) or the value's fixed size (`width`). The kernel
writes the offset and size of each value; `column_types` decodes the values, column by column.

The kernel checks that each read is within the event, and that the event is within the buffer. The kernel casts bytes to int64 before it
shifts them, because numba turns a mix of unsigned and signed integers into a float.
"""
# ruff: noqa: PLR0917 - numba has no keyword-only arguments

from __future__ import annotations

import numpy as np

from sluice.cdc_engine.binlog.compiled import Integer, kernel
from sluice.cdc_engine.binlog.little_endian import little_endian
from sluice.cdc_engine.binlog.located_values import LocatedValues
from sluice.cdc_engine.binlog.rows.kernel_arguments import ChunkMemory, RowEvents, TableLayout
from sluice.cdc_engine.contracts import Bytes, Int32s, Int64s

# Results of `locate`. Unless the result is DONE, cursor[0] is the index of the event at which `locate` stopped.
DONE, FULL, TRUNCATED, WRONG_COLUMN_COUNT, IMAGE_NOT_FULL = 0, 1, 2, 3, 4

HEADER_BYTES = 19
KIND_INSERT, KIND_UPDATE, KIND_DELETE = 1, 2, 3  # contracts.RowEventKind
INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = 1, 2, 3, 4  # contracts.Operation


@kernel
def all_present(buffer: Bytes, at: Integer, column_count: Integer) -> bool:
    """Returns whether the bits of all columns are set in the bitmap at `at`."""
    for column in range(column_count):  # noqa: SIM110 - compiled, a loop is the fast form
        if not (np.int64(buffer[at + (column >> 3)]) >> np.int64(column & 7)) & 1:
            return False
    return True


@kernel
def column_count_at(buffer: Bytes, at: Integer, end: Integer) -> tuple[Integer, Integer]:
    """Reads a length-encoded column count. Returns (count, offset after the count). The returned count is -1 if its bytes are truncated,
    and -2 if the count is greater than a table can have.
    """
    if at + 1 > end:
        return -1, at
    count = np.int64(buffer[at])
    if count <= 0xFA:
        return count, at + 1
    if count != 0xFC:
        return -2, at
    return (little_endian(buffer, at + 1, 2), at + 3) if at + 3 <= end else (-1, at)


@kernel
def first_image(
    buffer: Bytes, at: Integer, end: Integer, kind: Integer, version: Integer, column_count: Integer
) -> Integer:
    """Returns the offset in `buffer` of the event's first row image. If this kernel cannot read the event, returns -TRUNCATED,
    -WRONG_COLUMN_COUNT or -IMAGE_NOT_FULL. IMAGE_NOT_FULL means that images omit columns, or that the event has version 3.
    """
    at += HEADER_BYTES + 8
    if version >= 2:
        if version == 3:
            return -IMAGE_NOT_FULL
        extra = little_endian(buffer, at, 2) if at + 2 <= end else 0
        if extra < 2:
            return -TRUNCATED
        at += extra
    count, at = column_count_at(buffer, at, end)
    if count != column_count:
        return -TRUNCATED if count == -1 else -WRONG_COLUMN_COUNT
    for _ in range(2 if kind == KIND_UPDATE else 1):
        if at + ((column_count + 7) >> 3) > end:
            return -TRUNCATED
        if not all_present(buffer, at, column_count):
            return -IMAGE_NOT_FULL
        at += (column_count + 7) >> 3
    return at


@kernel
def locate_image(
    buffer: Bytes, at: Integer, end: Integer, layout: TableLayout, values: LocatedValues, row: Integer
) -> Integer:
    """Writes the offset and size of each value of the image at `at` to row `row` of `values`. Leaves out the columns that are not decoded
    (`layout.slot` is -1). NULL has the offset -1. Returns the end of the image, or -1 if the image is truncated.
    """
    prefix, width, slot, _ = layout
    starts, sizes = values
    column_count = prefix.shape[0]
    nulls = at
    at += (column_count + 7) >> 3
    if at > end:
        return -1
    for column in range(column_count):
        wanted = slot[column]
        if (np.int64(buffer[nulls + (column >> 3)]) >> np.int64(column & 7)) & 1:
            if wanted >= 0:
                starts[wanted, row] = -1
                sizes[wanted, row] = 0
            continue
        size = np.int64(width[column])
        if prefix[column]:
            if at + prefix[column] > end:
                return -1
            size = little_endian(buffer, at, np.int64(prefix[column]))
            at += prefix[column]
        if size > end - at:
            return -1
        if wanted >= 0:
            starts[wanted, row] = at
            sizes[wanted, row] = size
        at += size
    return at


@kernel
def key_differs(buffer: Bytes, key: Int32s, values: LocatedValues, row: Integer, others: LocatedValues) -> bool:
    """Returns whether any column of `key` has different bytes in row `row` of `values` and in row 0 of `others`."""
    starts, sizes = values
    other_starts, other_sizes = others
    for index in range(key.shape[0]):
        column = key[index]
        size = sizes[column, row]
        if size != other_sizes[column, 0]:
            return True
        start, other = starts[column, row], other_starts[column, 0]
        if (start < 0) != (other < 0):
            return True
        for byte in range(size):
            if buffer[start + byte] != buffer[other + byte]:
                return True
    return False


@kernel
def make_room_before(values: LocatedValues, row: Integer, others: LocatedValues) -> None:
    """Inserts row 0 of `others` before row `row` of `values`: row `row` of `values` moves to the next row, which must be free."""
    starts, sizes = values
    other_starts, other_sizes = others
    for column in range(starts.shape[0]):
        starts[column, row + 1], sizes[column, row + 1] = starts[column, row], sizes[column, row]
        starts[column, row], sizes[column, row] = other_starts[column, 0], other_sizes[column, 0]


@kernel
def locate_update(
    buffer: Bytes, at: Integer, end: Integer, layout: TableLayout, row: Integer, memory: ChunkMemory
) -> tuple[Integer, Integer]:
    """Locates both images of an updated row. Returns (end of the images, number of rows written), or (-1, 0) if an image is truncated. The
    before image becomes a row only if a column of `layout.key` changes or `layout.key` is empty.
    """
    after_at = locate_image(buffer, at, end, layout, memory.before, 0)
    if after_at < 0:
        return -1, 0
    next_at = locate_image(buffer, after_at, end, layout, memory.values, row)
    if next_at < 0:
        return -1, 0
    count = 1
    if layout.key.shape[0] == 0 or key_differs(buffer, layout.key, memory.values, row, memory.before):
        make_room_before(memory.values, row, memory.before)
        memory.operation[row] = UPDATE_BEFORE
        row += 1
        count = 2
    memory.operation[row] = UPDATE_AFTER
    return next_at, count


@kernel
def locate(events: RowEvents, layout: TableLayout, cursor: Int64s, bytes_max: Integer, memory: ChunkMemory) -> Integer:
    """Locates the values of images, from the image at `cursor` on. Returns DONE after the last event, FULL if the memory has no free rows
    or after `bytes_max` bytes of images, or TRUNCATED, WRONG_COLUMN_COUNT or IMAGE_NOT_FULL for an event that this kernel cannot read.

    `cursor` (int64, at least 3 values): index of the event, offset in `buffer` of the next image (0 at the beginning of an event), number
    of rows that this call wrote.
    """
    buffer, event_offset, event_length, event_kind, event_version = events
    column_count, operation, image_event = layout.prefix.shape[0], memory.operation, memory.image_event
    event, at, row, taken = cursor[0], cursor[1], np.int64(0), np.int64(0)
    capacity = operation.shape[0]
    while event < event_offset.shape[0]:
        end = event_offset[event] + event_length[event]
        cursor[0] = event
        if at == 0:
            if event_offset[event] < 0 or event_length[event] < HEADER_BYTES + 8 or end > buffer.shape[0]:
                return TRUNCATED
            at = first_image(buffer, event_offset[event], end, event_kind[event], event_version[event], column_count)
            if at < 0:
                return -at
        while at < end:
            if row + 2 > capacity or taken >= bytes_max:
                cursor[1], cursor[2] = at, row
                return FULL
            begin = at
            if event_kind[event] == KIND_UPDATE:
                at, count = locate_update(buffer, at, end, layout, row, memory)
            else:
                at, count = locate_image(buffer, at, end, layout, memory.values, row), 1
                operation[row] = INSERT if event_kind[event] == KIND_INSERT else DELETE
            if at < 0:
                return TRUNCATED
            for index in range(count):
                image_event[row + index] = event
            row += count
            taken += at - begin
        at = 0
        event += 1
    cursor[0], cursor[1], cursor[2] = event, 0, row
    return DONE
