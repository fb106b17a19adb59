"""Kernels that write flat messages: rows as JSON in the form of Canal's FlatMessage. Called by `flat`.

The caller calls the same functions twice, first to measure and then to write the messages. If `writes` is False, a function writes nothing
and only returns the end offset.
"""
# ruff: noqa: PLR0917, PLR1714 - numba has no keyword-only arguments; it compiles comparisons, and cannot compile a test in a set

from __future__ import annotations

import numba as nb
import numpy as np

from sluice.cdc_engine.binlog.compiled import Integer, kernel
from sluice.cdc_engine.binlog.entries.assemble import ABSENT, NULL, beginning, is_updated
from sluice.cdc_engine.binlog.entries.kernel_arguments import FlatUnits, MessageParts, Pieces, ShownValues
from sluice.cdc_engine.binlog.entries.protobuf import put_bytes
from sluice.cdc_engine.binlog.rows.locate import KIND_INSERT, KIND_UPDATE
from sluice.cdc_engine.contracts import Bytes, Int8s, Int64s

HEXADECIMAL = np.frombuffer(b"0123456789abcdef", np.uint8)
NULL_WORD = np.frombuffer(b"null", np.uint8)
# Each column has five pieces: its name as a JSON key, its type as a JSON string, and three sqlType numbers: the usual one, the one for
# values that need a wider type, and the one for NULL. NAME, TYPE and SQL_TYPE are the indices of the first three pieces.
NAME, TYPE, SQL_TYPE = 0, 1, 2
PIECES = 5
# The constant pieces of a message. Each piece before ENDS is named after the variable part that follows the piece in the message. The three
# pieces from ENDS on are the ends of the messages of an INSERT, an UPDATE and a DELETE.
DATA, ES, GTID, TYPES, OLD, KEYS, SQL_TYPES, ENDS = range(8)


@nb.njit(inline="always")
def short_escape(byte: Integer) -> Integer:
    """Returns the character after the backslash in JSON's short escape of a byte, or 0 if the byte has no short escape."""
    if byte == 34 or byte == 92:
        return byte
    if byte == 8:
        return 98
    if byte == 9:
        return 116
    if byte == 10:
        return 110
    if byte == 12:
        return 102
    return 114 if byte == 13 else 0


@kernel
def escaped_size(texts: Bytes, start: Integer, size: Integer) -> Integer:
    found = size
    for index in range(start, start + size):
        byte = texts[index]
        if byte < 32 or byte == 34 or byte == 92:
            found += 1 if short_escape(byte) else 5
    return found


@kernel
def put_escaped(out: Bytes, at: Integer, texts: Bytes, start: Integer, size: Integer) -> Integer:
    for index in range(start, start + size):
        byte = texts[index]
        if byte >= 32 and byte != 34 and byte != 92:
            out[at] = byte
            at += 1
            continue
        out[at] = 92
        escape = short_escape(byte)
        if escape:
            out[at + 1] = escape
            at += 2
        else:
            out[at + 1], out[at + 2], out[at + 3] = 117, 48, 48
            out[at + 4], out[at + 5] = HEXADECIMAL[byte >> 4], HEXADECIMAL[byte & 15]
            at += 6
    return at


@nb.njit(inline="always")
def put_piece(out: Bytes, at: Integer, pieces: Pieces, piece: Integer, writes: bool) -> Integer:
    first, size = pieces.starts[piece], pieces.starts[piece + 1] - pieces.starts[piece]
    return put_bytes(out, at, pieces.data, first, size) if writes else at + size


@nb.njit(inline="always")
def _put_byte(out: Bytes, at: Integer, byte: Integer, writes: bool) -> Integer:
    if writes:
        out[at] = byte
    return at + 1


@nb.njit(inline="always")
def _put_null(out: Bytes, at: Integer, writes: bool) -> Integer:
    return put_bytes(out, at, NULL_WORD, 0, 4) if writes else at + 4


@kernel
def put_row(
    out: Bytes, at: Integer, writes: bool, image: Integer, old: bool, values: ShownValues, columns: Pieces
) -> Integer:
    """Writes a JSON object with the values of an image. Returns the end offset. If `old`, the object is a row of the message's field `old`,
    which has only the values that an update changed: a column is omitted if the next image (the after image) lacks the column or has the
    same value.
    """
    starts, sizes, _, texts = values
    at = _put_byte(out, at, 123, writes)
    begin = at
    for column in range(sizes.shape[0]):
        size = sizes[column, image]
        if size == ABSENT:
            continue
        if old and (
            sizes[column, image + 1] == ABSENT or not is_updated(sizes, starts, texts, column, image + 1, True)
        ):
            continue
        if at > begin:
            at = _put_byte(out, at, 44, writes)
        at = put_piece(out, at, columns, PIECES * column + NAME, writes)
        if size == NULL:
            at = _put_null(out, at, writes)
            continue
        at = _put_byte(out, at, 34, writes)
        start = starts[column, image]
        at = put_escaped(out, at, texts, start, size) if writes else at + escaped_size(texts, start, size)
        at = _put_byte(out, at, 34, writes)
    return _put_byte(out, at, 125, writes)


@kernel
def put_rows(
    out: Bytes,
    at: Integer,
    writes: bool,
    images: Int64s,
    side: Integer,
    old: bool,
    values: ShownValues,
    columns: Pieces,
) -> Integer:
    """Writes a JSON array of rows, or null if there is no row. Returns the end offset. `images`: the index of each row's first image.
    `side`: 0 to write the first image of each row, 1 to write the second image (the after image of an update). `old`: whether the array is
    the message's field `old`, for which `put_row` omits columns that an update did not change. A row without columns is omitted if `old` is
    False, and is written as `{}` if `old` is True.
    """
    begin = at
    at = _put_byte(out, at, 91, writes)
    rows = 0
    for image in images:
        before = at
        if rows:
            at = _put_byte(out, at, 44, writes)
        start = at
        at = put_row(out, at, writes, image + side, old, values, columns)
        if at == start + 2 and not old:
            at = before
        else:
            rows += 1
    return _put_byte(out, at, 93, writes) if rows else _put_null(out, begin, writes)


@kernel
def put_columns(
    out: Bytes, at: Integer, writes: bool, image: Integer, piece: Integer, values: ShownValues, columns: Pieces
) -> Integer:
    """Writes a JSON object with the name of each column of the image and one of the column's constant pieces. Writes null if the image has
    no column. `piece`: TYPE to write the name of the column's type, or SQL_TYPE to write the number of its sqlType.
    """
    _, sizes, high, _ = values
    begin = at
    at = _put_byte(out, at, 123, writes)
    first = at
    for column in range(sizes.shape[0]):
        size = sizes[column, image]
        if size == ABSENT:
            continue
        if at > first:
            at = _put_byte(out, at, 44, writes)
        at = put_piece(out, at, columns, PIECES * column + NAME, writes)
        which = piece + (beginning(size, high[column, image]) if piece == SQL_TYPE else 0)
        at = put_piece(out, at, columns, PIECES * column + which, writes)
    return _put_byte(out, at, 125, writes) if at > first else _put_null(out, begin, writes)


@kernel
def put_keys(
    out: Bytes, at: Integer, writes: bool, image: Integer, keys: Int8s, sizes: Int64s, columns: Pieces
) -> Integer:
    """Writes a JSON array with the names of the key columns that the image has, or null if the image has no key column. The NAME piece of a
    column ends with a colon; the byte after the name overwrites this colon.
    """
    begin = at
    at = _put_byte(out, at, 91, writes)
    first = at
    for column in range(sizes.shape[0]):
        if not keys[column] or sizes[column, image] == ABSENT:
            continue
        if at > first:
            at = _put_byte(out, at, 44, writes)
        at = put_piece(out, at, columns, PIECES * column + NAME, writes) - 1
    return _put_byte(out, at, 93, writes) if at > first else _put_null(out, begin, writes)


@kernel
def put_number(out: Bytes, at: Integer, writes: bool, value: Integer) -> Integer:
    """Writes a non-negative number in decimal."""
    digits, left = 1, value
    while left > 9:
        left //= 10
        digits += 1
    if writes:
        for index in range(digits):
            out[at + digits - 1 - index] = 48 + value % 10
            value //= 10
    return at + digits


@kernel
def put_message(
    out: Bytes, at: Integer, writes: bool, units: FlatUnits, message: Integer, values: ShownValues, table: MessageParts
) -> Integer:
    """Writes one message. Returns the offset after the message."""
    first, ms, shown = units.begins[message], units.ms[message], units.shown[message]
    kind, images = units.kinds[first], units.images[first : units.begins[message + 1]]
    keys, columns, frame = table
    side, updates = (1, True) if kind == KIND_UPDATE else (0, False)
    at = put_piece(out, at, frame, DATA, writes)
    at = put_rows(out, at, writes, images, side, False, values, columns)
    at = put_piece(out, at, frame, ES, writes)
    at = put_number(out, at, writes, ms)
    at = put_piece(out, at, frame, GTID, writes)
    if units.marks[message] >= 0:
        at = put_piece(out, at, units.gtids, 3 * units.marks[message] + 2, writes)
    at = put_piece(out, at, frame, TYPES, writes)
    at = put_columns(out, at, writes, shown, TYPE, values, columns)
    at = put_piece(out, at, frame, OLD, writes)
    at = put_rows(out, at, writes, images, 0, True, values, columns) if updates else _put_null(out, at, writes)
    at = put_piece(out, at, frame, KEYS, writes)
    at = put_keys(out, at, writes, images[0] + side, keys, values.sizes, columns)
    at = put_piece(out, at, frame, SQL_TYPES, writes)
    at = put_columns(out, at, writes, shown, SQL_TYPE, values, columns)
    return put_piece(out, at, frame, ENDS + kind - KIND_INSERT, writes)


@kernel
def put_messages(
    out: Bytes, writes: bool, units: FlatUnits, values: ShownValues, table: MessageParts, ends: Int64s
) -> None:
    """Writes all messages to `out` if `writes` is True. Always writes the end offset of each message to `ends`."""
    at = np.int64(0)
    for message in range(units.begins.shape[0] - 1):
        at = put_message(out, at, writes, units, message, values, table)
        ends[message] = at
