"""Kernels that write Canal's entries for row events, for the SQL texts of statements, and for the beginning and end of transactions. The
values of row events are already texts.

In protobuf, the length of an embedded message is written before the message. So `measure_images` and `measure_events` compute all sizes
before `put_events` writes.
"""
# ruff: noqa: PLR0917 - numba has no keyword-only arguments

from __future__ import annotations

import numba as nb
import numpy as np

from sluice.cdc_engine.binlog.compiled import Integer, kernel
from sluice.cdc_engine.binlog.entries.kernel_arguments import (
    ColumnFrames,
    EntryHeaders,
    EntrySizes,
    MeasuredImages,
    Pieces,
    ShownImages,
    ShownValues,
)
from sluice.cdc_engine.binlog.entries.locate import AFTER
from sluice.cdc_engine.binlog.entries.protobuf import field_size, put_bytes, put_field, put_varint, varint_size
from sluice.cdc_engine.contracts import Bytes, Int8s, Int64s

# These numbers stand in place of a value's size: NULL if the value is NULL, ABSENT if the row image omits the value.
NULL, ABSENT = -1, -2
QUERY_KIND = 7  # numbers.EventType.QUERY
# A Column message can begin in three ways, which differ in the field sqlType. These are the indices of the beginnings: with the column's
# usual sqlType, with its wider sqlType (see `ShownValues.high`), and with the sqlType of NULL.
PLAIN, HIGH, OF_NULL = 0, 1, 2
# The bytes of the Pair `rowsCount` before the length of its value.
ROWS_COUNT = np.frombuffer(b"\x0a\x09rowsCount\x12", np.uint8)


@nb.njit(inline="always")
def is_updated(sizes: Int64s, starts: Int64s, texts: Bytes, column: Integer, image: Integer, paired: bool) -> bool:
    """Returns whether the value of a column in the after image `image` differs from the value in the before image `image` - 1. `paired`:
    whether there is a before image. Returns True if there is no before image, or if the before image omits the value.
    """
    if not paired:
        return True
    size, other = sizes[column, image], sizes[column, image - 1]
    if other == ABSENT or size != other:
        return True
    for index in range(size):  # noqa: SIM110  compiled, a loop is the fast form
        if texts[starts[column, image] + index] != texts[starts[column, image - 1] + index]:
            return True
    return False


@nb.njit(inline="always")
def beginning(size: Integer, high: Integer) -> Integer:
    return OF_NULL if size == NULL else high


@kernel
def measure_images(images: ShownImages, frame: ColumnFrames, measured: MeasuredImages) -> None:
    """Computes the sizes of all images and of their Column messages, and which values are marked as updated. Writes both to `measured`."""
    image_side, image_event, values = images
    starts, sizes, high, texts = values
    heads, tails = frame.heads, frame.tails
    updated, column_sizes, image_sizes = measured
    for image in range(image_side.shape[0]):
        total = np.int64(0)
        after = image_side[image] == AFTER
        paired = after and image > 0 and image_event[image - 1] == image_event[image] and image_side[image - 1] != AFTER
        for column in range(sizes.shape[0]):
            size = sizes[column, image]
            if size == ABSENT:
                column_sizes[column, image] = -1
                continue
            changed = after and is_updated(sizes, starts, texts, column, image, paired)
            updated[column, image] = changed
            own = heads[column, beginning(size, high[column, image])] + tails[column] + 2
            own += 2 if changed else 0
            own += 1 + varint_size(size) + size if size >= 0 else 0
            column_sizes[column, image] = own
            total += 1 + varint_size(own) + own
        image_sizes[image] = total


@nb.njit(inline="always")
def _digits(value: Integer) -> Integer:
    digits = 1
    while value > 9:
        value //= 10
        digits += 1
    return digits


@nb.njit(inline="always")
def header_size(headers: EntryHeaders, entry: Integer, kind: Integer) -> Integer:
    """Returns the number of bytes of an entry's header. The header has the fields: version 1, file, offset, server, "UTF-8", time, MYSQL,
    database and table, length, eventType (only if `kind` is not 0), row count and GTIDs.
    """
    file, rows = headers.file.shape[0], headers.row_counts[entry]
    own = 2 + 1 + varint_size(file) + file + field_size(headers.offsets[entry]) + field_size(headers.servers[entry])
    own += 7 + field_size(headers.ms[entry]) + 2 + headers.names.shape[0]
    own += field_size(headers.lengths[entry]) + field_size(kind)
    mark, starts = headers.marks[entry], headers.gtids.starts
    if mark >= 0:
        own += starts[3 * mark + 3] - starts[3 * mark]
    return own + (2 + ROWS_COUNT.shape[0] + 1 + _digits(rows) if rows else 0)


@nb.njit(inline="always")
def put_header(out: Bytes, at: Integer, headers: EntryHeaders, entry: Integer, kind: Integer) -> Integer:
    """Writes an entry's header, whose size `header_size` returns. Returns the offset after the header."""
    file, names, rows = headers.file, headers.names, headers.row_counts[entry]
    out[at], out[at + 1], out[at + 2] = 0x08, 1, 0x12
    at = put_varint(out, at + 3, file.shape[0])
    at = put_bytes(out, at, file, 0, file.shape[0])
    at = put_field(out, at, 0x18, headers.offsets[entry])
    at = put_field(out, at, 0x20, headers.servers[entry])
    out[at], out[at + 1] = 0x2A, 5
    out[at + 2], out[at + 3], out[at + 4], out[at + 5], out[at + 6] = 85, 84, 70, 45, 56
    at = put_field(out, at + 7, 0x30, headers.ms[entry])
    out[at], out[at + 1] = 0x38, 2
    at = put_bytes(out, at + 2, names, 0, names.shape[0])
    at = put_field(out, at, 0x50, headers.lengths[entry])
    at = put_field(out, at, 0x58, kind)
    mark, gtids = headers.marks[entry], headers.gtids
    if mark >= 0:
        at = put_bytes(out, at, gtids.data, gtids.starts[3 * mark], gtids.starts[3 * mark + 1] - gtids.starts[3 * mark])
    if rows:
        digits = _digits(rows)
        out[at], out[at + 1] = 0x62, ROWS_COUNT.shape[0] + 1 + digits
        at = put_bytes(out, at + 2, ROWS_COUNT, 0, ROWS_COUNT.shape[0])
        out[at] = digits
        at += 1
        for index in range(digits):
            out[at + digits - 1 - index] = 48 + rows % 10
            rows //= 10
        at += digits
    if mark >= 0:
        first = gtids.starts[3 * mark + 1]
        at = put_bytes(out, at, gtids.data, first, gtids.starts[3 * mark + 3] - first)
    return at


@kernel
def measure_events(
    kinds: Int8s,
    table_ids: Int64s,
    headers: EntryHeaders,
    images: ShownImages,
    image_sizes: Int64s,
    measured: EntrySizes,
) -> Integer:
    """Computes the sizes of all events' entries and writes them into `measured`. Returns the total bytes of the entries."""
    image_side, image_event, _ = images
    change_sizes, header_sizes, entry_sizes, _ = measured
    for event in range(kinds.shape[0]):
        change_sizes[event] = field_size(table_ids[event]) + 2 + 2
    for image in range(image_event.shape[0]):
        event = image_event[image]
        whole = image_sizes[image]
        if kinds[event] == 2:
            if image_side[image] != AFTER:
                continue
            whole += image_sizes[image - 1]
        change_sizes[event] += 1 + varint_size(whole) + whole
    total = np.int64(0)
    for event in range(kinds.shape[0]):
        header = header_size(headers, event, np.int64(kinds[event]))
        header_sizes[event] = header
        body = change_sizes[event]
        entry_sizes[event] = 1 + varint_size(header) + header + 2 + 1 + varint_size(body) + body
        total += entry_sizes[event]
    return total


@kernel
def put_image(
    out: Bytes,
    at: Integer,
    image: Integer,
    key: Integer,
    values: ShownValues,
    frame: ColumnFrames,
    measured: MeasuredImages,
) -> Integer:
    starts, sizes, high, texts = values
    pool, head_at, heads, tail_at, tails = frame
    updated, column_sizes, _ = measured
    for column in range(sizes.shape[0]):
        own = column_sizes[column, image]
        if own < 0:
            continue
        size = sizes[column, image]
        out[at] = key
        at = put_varint(out, at + 1, own)
        which = beginning(size, high[column, image])
        at = put_bytes(out, at, pool, head_at[column, which], heads[column, which])
        if updated[column, image]:
            out[at], out[at + 1] = 0x28, 1
            at += 2
        out[at], out[at + 1] = 0x30, size == NULL
        at += 2
        if size >= 0:
            out[at] = 0x42
            at = put_varint(out, at + 1, size)
            at = put_bytes(out, at, texts, starts[column, image], size)
        at = put_bytes(out, at, pool, tail_at[column], tails[column])
    return at


@kernel
def put_events(
    out: Bytes,
    kinds: Int8s,
    table_ids: Int64s,
    headers: EntryHeaders,
    images: ShownImages,
    frame: ColumnFrames,
    measured: MeasuredImages,
    entries: EntrySizes,
) -> None:
    """Writes the entry of each event to `out`, and the offset of each entry to `entries.starts`."""
    image_side, image_event, values = images
    change_sizes, header_sizes, _, entry_starts = entries
    image_sizes = measured.images
    at, image = np.int64(0), np.int64(0)
    for event in range(kinds.shape[0]):
        entry_starts[event] = at
        out[at] = 0x0A
        at = put_varint(out, at + 1, header_sizes[event])
        at = put_header(out, at, headers, event, np.int64(kinds[event]))
        out[at], out[at + 1], out[at + 2] = 0x10, 2, 0x1A
        at = put_varint(out, at + 3, change_sizes[event])
        at = put_field(out, at, 0x08, table_ids[event])
        out[at], out[at + 1], out[at + 2], out[at + 3] = 0x10, kinds[event], 0x50, 0
        at += 4
        while image < image_event.shape[0] and image_event[image] == event:
            pair = kinds[event] == 2
            whole = image_sizes[image] + (image_sizes[image + 1] if pair else 0)
            out[at] = 0x62
            at = put_varint(out, at + 1, whole)
            for each in range(2 if pair else 1):
                key = 0x12 if image_side[image + each] == AFTER else 0x0A
                at = put_image(out, at, image + each, key, values, frame, measured)
            image += 2 if pair else 1


@kernel
def put_frames(
    out: Bytes, kinds: Int8s, numbers: Int64s, headers: EntryHeaders, entry_starts: Int64s, entry_sizes: Int64s
) -> Integer:
    """Writes the entries of transactions' beginnings (kind 0) and ends to `out`, and the offset and size of each entry to `entry_starts`
    and `entry_sizes`. `numbers`: the thread id of a beginning, the transaction id of an end. Returns the number of bytes written.
    """
    at = np.int64(0)
    for index in range(kinds.shape[0]):
        entry_starts[index] = at
        header = header_size(headers, index, 0)
        out[at] = 0x0A
        at = put_varint(out, at + 1, header)
        at = put_header(out, at, headers, index, 0)
        out[at], out[at + 1] = 0x10, 1 if kinds[index] == 0 else 3
        at += 2
        number = numbers[index]
        if kinds[index] == 0:
            if number > 0:
                out[at], out[at + 1] = 0x1A, field_size(number)
                at = put_field(out, at + 2, 0x20, number)
        else:
            digits = _digits(number)
            out[at], out[at + 1], out[at + 2], out[at + 3] = 0x1A, 2 + digits, 0x12, digits
            for digit in range(digits):
                out[at + 4 + digits - 1 - digit] = 48 + number % 10
                number //= 10
            at += 4 + digits
        entry_sizes[index] = at - entry_starts[index]
    return at


@kernel
def put_queries(out: Bytes, texts: Pieces, headers: EntryHeaders, entry_starts: Int64s, entry_sizes: Int64s) -> Integer:
    """Writes an entry of the type QUERY for each SQL text to `out`, and the offset and size of each entry to `entry_starts` and
    `entry_sizes`. Returns the number of bytes written.
    """
    at = np.int64(0)
    for index in range(entry_starts.shape[0]):
        entry_starts[index] = at
        header = header_size(headers, index, QUERY_KIND)
        out[at] = 0x0A
        at = put_varint(out, at + 1, header)
        at = put_header(out, at, headers, index, QUERY_KIND)
        first, size = texts.starts[index], texts.starts[index + 1] - texts.starts[index]
        out[at], out[at + 1], out[at + 2] = 0x10, 2, 0x1A
        at = put_varint(out, at + 3, 2 + 1 + varint_size(size) + size)
        out[at], out[at + 1], out[at + 2] = 0x10, QUERY_KIND, 0x5A
        at = put_varint(out, at + 3, size)
        at = put_bytes(out, at, texts.data, first, size)
        entry_sizes[index] = at - entry_starts[index]
    return at


@kernel
def gather_texts(source: Bytes, begins: Int64s, starts: Int64s, out: Bytes) -> None:
    """Copies texts: text n begins at begins[n] in `source`, and is written to starts[n] : starts[n + 1] in `out`."""
    for index in range(begins.shape[0]):
        put_bytes(out, starts[index], source, begins[index], starts[index + 1] - starts[index])
