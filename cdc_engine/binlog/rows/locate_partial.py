"""Kernel that locates values in row events that omit columns (binlog_row_image MINIMAL, NOBLOB, FULL_NODUP) or contain JSON differences
(version 3, see `locate_diffs`). Called by `decoder` and `entries.locate`.

The kernel does the same as `locate`, but slower, because it reads the bitmaps of present columns in each event. An image has NULL bits only
for present columns. If the after image of an update omits a value, the kernel uses the value of the before image. If both images omit a
value, its offset is ABSENT.

Once per event, the kernel checks whether it can decode the event without the omitted columns. The check uses facts about the table's
columns (bits of one int8 per column). Servers that write version 1 of the events (MariaDB; MySQL with log_bin_use_v1_row_events) need two
more checks. Such a server omits virtual columns from an update even if their values change. Such a server also logs some REPLACE statements
as updates, and omits the columns that REPLACE sets to their defaults.
"""
# ruff: noqa: PLR0917 - numba has no keyword-only arguments

from __future__ import annotations

import numpy as np

from sluice.cdc_engine.binlog.compiled import Integer, kernel
from sluice.cdc_engine.binlog.little_endian import little_endian
from sluice.cdc_engine.binlog.located_values import LocatedValues
from sluice.cdc_engine.binlog.rows.kernel_arguments import ChunkMemory, ImageColumns, OpenEvent, RowEvents, TableLayout
from sluice.cdc_engine.binlog.rows.locate import (
    DELETE,
    DONE,
    FULL,
    HEADER_BYTES,
    INSERT,
    KIND_INSERT,
    KIND_UPDATE,
    TRUNCATED,
    UPDATE_AFTER,
    UPDATE_BEFORE,
    WRONG_COLUMN_COUNT,
    column_count_at,
    key_differs,
    make_room_before,
)
from sluice.cdc_engine.binlog.rows.locate_diffs import (
    ROW,
    column_without_document,
    note_differences,
    read_value_options,
)
from sluice.cdc_engine.contracts import Bytes, Int8s, Int64s

ABSENT = -2  # The offset of a value that the image omits.
# Results of `locate_partial` in addition to those of `locate` and `locate_diffs`. Each is a reason why an event cannot be decoded. With
# each of these results, cursor[3] is the index of the column that is the cause.
KEY_ABSENT, VALUE_ABSENT, DEFAULT_UNKNOWN, GENERATED_ABSENT, REPLACE_POSSIBLE, ALL_ABSENT, DOCUMENT_ABSENT = range(
    10, 17
)
# Bits of a column's facts. WANTED: the column is decoded. KEY: the column is in the key. DEFAULTED: the column's default is known. VIRTUAL:
# the column is, or may be, virtual. LARGE: binlog_row_image=NOBLOB omits the column. `locate_diffs` defines one more bit, DOCUMENT.
WANTED, KEY, DEFAULTED, VIRTUAL, LARGE = 1, 2, 4, 8, 16


@kernel
def read_bitmap(buffer: Bytes, at: Integer, present: Int8s) -> None:
    for column in range(present.shape[0]):
        present[column] = (np.int64(buffer[at + (column >> 3)]) >> np.int64(column & 7)) & 1


@kernel
def first_image_of(
    buffer: Bytes, at: Integer, end: Integer, kind: Integer, version: Integer, before: Int8s, after: Int8s
) -> Integer:
    """Returns the offset in `buffer` of the event's first row image, or -TRUNCATED or -WRONG_COLUMN_COUNT if the event is not valid. Writes
    to `before`, for each column, 1 if the before images have the column, and otherwise 0. Writes the same for the after images to `after`.
    """
    at += HEADER_BYTES + 8
    if version >= 2:
        extra = little_endian(buffer, at, 2) if at + 2 <= end else 0
        if extra < 2:
            return -TRUNCATED
        at += extra
    column_count = before.shape[0]
    count, at = column_count_at(buffer, at, end)
    if count != column_count:
        return -TRUNCATED if count == -1 else -WRONG_COLUMN_COUNT
    size = (column_count + 7) >> 3
    if at + (2 * size if kind == KIND_UPDATE else size) > end:
        return -TRUNCATED
    read_bitmap(buffer, at, after if kind == KIND_INSERT else before)
    if kind == KIND_UPDATE:
        at += size
        read_bitmap(buffer, at, after)
    return at + size


@kernel
def why_refused(
    kind: Integer, version: Integer, keyed: bool, facts: Int8s, before: Int8s, after: Int8s
) -> tuple[Integer, Integer]:
    """Returns (0, -1) if an event can be decoded, else (reason, index of the column that is the cause). `before`, `after`: which columns
    the event's before images and after images have.
    """
    if kind == KIND_INSERT and not after.any():
        return ALL_ABSENT, 0  # Images without columns have no bytes, so the number of rows is unknown.
    for column in range(facts.shape[0]):
        fact = facts[column]
        if not fact & WANTED:
            continue
        if kind == KIND_INSERT:
            if not after[column] and not fact & DEFAULTED:
                return DEFAULT_UNKNOWN, column
            continue
        if not before[column] and fact & KEY:
            return KEY_ABSENT, column
        if not before[column] and not keyed:
            return VALUE_ABSENT, column
        if kind == KIND_UPDATE and version == 1 and fact & VIRTUAL and not after[column]:
            return GENERATED_ABSENT, column
    return 0, -1


@kernel
def column_in_doubt(version: Integer, facts: Int8s, before: Int8s, after: Int8s) -> Integer:
    """Finds out whether an update in an event may come from REPLACE, which sets the omitted columns to their defaults. This is possible
    only in version 1 of the events, and only if the update leaves the key unchanged. Returns the index of the first column that both images
    omit, or -1 if a REPLACE is impossible or no column is omitted by both images. The caller checks whether the key is unchanged.

    With MINIMAL, the after image of an UPDATE statement has key columns only if the statement sets them, so an unchanged key column in the
    after image is a sign of a REPLACE. With NOBLOB, the after image always has the key columns, so the result is -1. An event was written
    with MINIMAL if its before image omits a column that its after image has and that NOBLOB would not omit.
    """
    names_key, omitted, minimal = False, -1, False
    for column in range(facts.shape[0]):
        fact = facts[column]
        names_key |= fact & KEY != 0 and after[column] != 0
        if omitted < 0 and fact & WANTED != 0 and not before[column] and not after[column]:
            omitted = column
        minimal |= after[column] != 0 and not before[column] and not fact & LARGE
    return omitted if version == 1 and names_key and minimal else -1


@kernel
def locate_present(
    buffer: Bytes, at: Integer, end: Integer, layout: TableLayout, present: Int8s, values: LocatedValues, row: Integer
) -> Integer:
    """Writes the offset and size of each value of the image at `at` to row `row` of `values`. Leaves out the columns that are not decoded
    (`layout.slot` is -1). NULL has the offset -1. `present`: which columns the image has; the offset of each other column is ABSENT.
    Returns the end of the image, or -TRUNCATED.
    """
    prefix, width, slot, _ = layout
    starts, sizes = values
    nulls, count, index = at, np.int64(0), np.int64(0)
    for column in range(present.shape[0]):
        count += present[column]
    at += (count + 7) >> 3
    if at > end:
        return -TRUNCATED
    for column in range(present.shape[0]):
        wanted = slot[column]
        start, size = np.int64(ABSENT), np.int64(0)
        if present[column]:
            start = np.int64(-1)
            if not (np.int64(buffer[nulls + (index >> 3)]) >> (index & 7)) & 1:
                size = np.int64(width[column])
                if prefix[column]:
                    if at + prefix[column] > end:
                        return -TRUNCATED
                    size = little_endian(buffer, at, np.int64(prefix[column]))
                    at += prefix[column]
                if size > end - at:
                    return -TRUNCATED
                start = at
                at += size
            index += 1
        if wanted >= 0:
            starts[wanted, row], sizes[wanted, row] = start, size
    return at


@kernel
def inherit(values: LocatedValues, row: Integer, before: LocatedValues) -> None:
    """Copies the values that are ABSENT in row `row` of `values` from row 0 of `before`."""
    starts, sizes = values
    before_starts, before_sizes = before
    for column in range(starts.shape[0]):
        if starts[column, row] == ABSENT:
            starts[column, row], sizes[column, row] = before_starts[column, 0], before_sizes[column, 0]


@kernel
def locate_after(
    event: OpenEvent,
    at: Integer,
    layout: TableLayout,
    images: ImageColumns,
    values: LocatedValues,
    row: Integer,
    cursor: Int64s,
) -> Integer:
    """Locates the values of an update's after image. Returns the end of the image, a negative result of `locate_present` or
    `read_value_options`, or -DOCUMENT_ABSENT. -DOCUMENT_ABSENT means that the after image has JSON differences to a document that the
    before image omits. In this case, the index of the column is in `cursor[3]`.
    """
    if event.version == 3:
        at = read_value_options(event.buffer, at, event.end, images.facts, images.partial)
        if at < 0:
            return at
        lacking = column_without_document(images.partial, layout.slot, images.before, images.after)
        if lacking >= 0:
            cursor[3] = lacking
            return -DOCUMENT_ABSENT
    return locate_present(event.buffer, at, event.end, layout, images.after, values, row)


@kernel
def locate_partial_update(
    event: OpenEvent,
    at: Integer,
    layout: TableLayout,
    images: ImageColumns,
    row: Integer,
    memory: ChunkMemory,
    cursor: Int64s,
) -> tuple[Integer, Integer]:
    """Locates both images of an updated row. Returns (end of the images, number of rows written). If the event cannot be decoded, returns
    (-reason, 0), for example (-TRUNCATED, 0). The before image becomes a row only if a column of `layout.key` changes or `layout.key` is
    empty.
    """
    values, before, key = memory.values, memory.before, layout.key
    after_at = locate_present(event.buffer, at, event.end, layout, images.before, before, 0)
    if after_at < 0:
        return after_at, 0
    next_at = locate_after(event, after_at, layout, images, values, row, cursor)
    if next_at < 0:
        return next_at, 0
    noted = cursor[4]
    if event.version == 3:
        cursor[4] = note_differences(images.partial, layout.slot, values.starts, row, before, memory.differences, noted)
    inherit(values, row, before)
    differs = key_differs(event.buffer, key, values, row, before)
    if event.column_in_doubt >= 0 and not differs:
        cursor[3] = event.column_in_doubt
        return -REPLACE_POSSIBLE, 0
    count = 1
    if key.shape[0] == 0 or differs:
        make_room_before(values, row, before)
        memory.operation[row] = UPDATE_BEFORE
        row += 1
        count = 2
        memory.differences[ROW, noted : cursor[4]] = row
    memory.operation[row] = UPDATE_AFTER
    return next_at, count


@kernel
def locate_partial(
    events: RowEvents,
    layout: TableLayout,
    images: ImageColumns,
    cursor: Int64s,
    bytes_max: Integer,
    memory: ChunkMemory,
) -> Integer:
    """Locates the values of images, from the image at `cursor` on; images may omit columns. Returns DONE after the last event, FULL if
    `memory` is full or after `bytes_max` bytes of images, or the reason why an event cannot be decoded.

    `cursor` (int64, 5 values): the first three values are the event, the offset and the number of rows, as in `locate.locate`. If an event
    cannot be decoded, cursor[3] is the index of the column that is the cause. cursor[4] is the number of entries that this call wrote to
    `memory.differences`.
    """
    buffer, event_offset, event_length, event_kind, event_version = events
    facts, before, after, _ = images
    keyed, operation, image_event = layout.key.shape[0] > 0, memory.operation, memory.image_event
    cells, noted_max = memory.values.starts.shape[0], memory.differences.shape[1]
    event, resumed, row, taken = cursor[0], cursor[1], np.int64(0), np.int64(0)
    cursor[4] = 0
    while event < event_offset.shape[0]:
        end, kind, version = event_offset[event] + event_length[event], event_kind[event], event_version[event]
        cursor[0] = event
        if event_offset[event] < 0 or event_length[event] < HEADER_BYTES + 8 or end > buffer.shape[0]:
            return TRUNCATED
        at = first_image_of(buffer, event_offset[event], end, kind, version, before, after)
        if at < 0:
            return -at
        refused, cursor[3] = why_refused(kind, version, keyed, facts, before, after)
        if refused:
            return refused
        in_doubt = column_in_doubt(version, facts, before, after) if kind == KIND_UPDATE and keyed else -1
        opened = OpenEvent(buffer, end, version, in_doubt)
        at = max(at, resumed)
        while at < end:
            if row + 2 > operation.shape[0] or taken >= bytes_max or cursor[4] + cells > noted_max:
                cursor[1], cursor[2] = at, row
                return FULL
            begin, count = at, 1
            if kind == KIND_UPDATE:
                at, count = locate_partial_update(opened, at, layout, images, row, memory, cursor)
            else:
                present = after if kind == KIND_INSERT else before
                at = locate_present(buffer, at, end, layout, present, memory.values, row)
                operation[row] = INSERT if kind == KIND_INSERT else DELETE
            if at < 0:
                return -at
            for index in range(count):
                image_event[row + index] = event
            row += count
            taken += at - begin
        resumed = 0
        event += 1
    cursor[0], cursor[1], cursor[2] = event, 0, row
    return DONE
