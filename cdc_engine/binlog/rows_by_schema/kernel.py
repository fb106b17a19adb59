"""Numba kernels for both Avro and Protobuf: they parse numbers, dates and times from text, and write integers and bytes. Called by
`avro_kernel`, `protobuf_kernel` and `table`.
"""
# ruff: noqa: PLR1714, SIM109 - numba compiles comparisons, and cannot compile a test in a set

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np

from sluice.cdc_engine.binlog.compiled import Integer, kernel
from sluice.cdc_engine.binlog.entries.assemble import ABSENT
from sluice.cdc_engine.binlog.entries.kernel_arguments import Pieces, ShownValues
from sluice.cdc_engine.binlog.entries.protobuf import put_bytes
from sluice.cdc_engine.binlog.rows.locate import KIND_UPDATE
from sluice.cdc_engine.contracts import Bytes, Int8s, Int64s

# The numbers of `columns.ColumnKind`.
INT, LONG, UNSIGNED, DECIMAL, DATE, DATETIME, TIMESTAMP, TIME, FLOAT, DOUBLE, STRING, BYTES = range(12)
# Indices in the result of `SchemaTable.frame`: header of the key, header of the value, binlog file, table, and ts_ms.
KEY_HEAD, VALUE_HEAD, FILE, TABLE, NOW = range(5)
# An encoded value is longer than its text by at most this many bytes: a decimal by DECIMAL_BYTES, any other value by CELL_BYTES.
CELL_BYTES, DECIMAL_BYTES = 16, 48
# A message has at most this many bytes in addition to its values, frame, GTID and names of omitted columns.
MESSAGE_BYTES = 128
DAY_MICROS, SECOND_MICROS = 86_400_000_000, 1_000_000
NO_MOMENT = -(2**62)  # Returned for an invalid date such as 2021-02-31.
LIMBS = 8  # The number of 32-bit limbs for a decimal. The 65 digits that a DECIMAL can have need 216 bits.
MINUS = 45
OPS = np.frombuffer(b"cud", np.uint8)


class RowColumns(NamedTuple):
    """The columns of a table. The arrays have one entry per column. `kinds`: numbers of `ColumnKind`. `keys`: 1 for a key column. `bits`:
    for a FLOAT or DOUBLE column, the index of the column in `SchemaValues.bits`, else -1. `names`: the column names, encoded in the format
    of the messages.
    """

    kinds: Int8s
    scales: Int64s
    keys: Int8s
    bits: Int64s
    names: Pieces


class SchemaValues(NamedTuple):
    """The values to encode. `shown`: the texts of the values. `bits`: the bits of FLOAT and DOUBLE values (shape: columns, images).
    `limbs`: scratch memory for one decimal.
    """

    shown: ShownValues
    bits: Int64s
    limbs: Int64s


class RowUnits(NamedTuple):
    """The changed rows to encode. The arrays have one entry per message: the kind of change, the index of the row's first image, and the
    offset in the file, the time (ms) and the server id of the row event. `gtids`: encoded GTIDs. `marks`: the index of each message's GTID
    in `gtids`.
    """

    kinds: Int8s
    images: Int64s
    offsets: Int64s
    ms: Int64s
    servers: Int64s
    gtids: Pieces
    marks: Int64s


@nb.njit(inline="always")
def put_unsigned(out: Bytes, at: Integer, value: Integer) -> Integer:
    """Writes the 64 bits of a number as an unsigned varint. Returns the offset after the varint."""
    while value & ~0x7F:
        out[at] = value & 0x7F | 0x80
        value = (value >> 7) & 0x1FFFFFFFFFFFFFF
        at += 1
    out[at] = value
    return at + 1


@nb.njit(inline="always")
def put_long(out: Bytes, at: Integer, value: Integer) -> Integer:
    """Writes a signed number as a zigzag varint. Returns the offset after the varint."""
    return put_unsigned(out, at, (value << 1) ^ (value >> 63))


@nb.njit(inline="always")
def put_bits(out: Bytes, at: Integer, bits: Integer, size: Integer) -> Integer:
    for index in range(size):
        out[at + index] = bits >> (8 * index) & 0xFF
    return at + size


@nb.njit(inline="always")
def digits_of(texts: Bytes, first: Integer, end: Integer) -> Integer:
    """Returns the number that the digits texts[first:end] form."""
    found = np.int64(0)
    for index in range(first, end):
        found = found * 10 + (np.int64(texts[index]) - 48)
    return found


@kernel
def number_of(kind: Integer, texts: Bytes, first: Integer, end: Integer) -> Integer:
    """Parses the text of an integer, a date or a time. Returns the integer itself, the days since 1970 for a DATE, the microseconds since
    1970 for a DATETIME or TIMESTAMP, and the signed microseconds of a TIME. Returns NO_MOMENT for an invalid date.
    """
    if kind == DATE or kind == DATETIME or kind == TIMESTAMP:
        days = days_of(texts, first)
        if kind == DATE or days == NO_MOMENT:
            return days
        return days * DAY_MICROS + clock_of(texts, first + 11, end)
    negative = texts[first] == MINUS
    start = first + negative
    number = clock_of(texts, start, end) if kind == TIME else digits_of(texts, start, end)
    return -number if negative else number


@kernel
def days_of(texts: Bytes, first: Integer) -> Integer:
    """Returns the days from 1970-01-01 to the date at `first`, or NO_MOMENT if the date is invalid or before year 1."""
    year, month, day = (
        digits_of(texts, first, first + 4),
        digits_of(texts, first + 5, first + 7),
        digits_of(texts, first + 8, first + 10),
    )
    leaps = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    last = 31
    if month == 4 or month == 6 or month == 9 or month == 11:
        last = 30
    elif month == 2:
        last = 29 if leaps else 28
    if year < 1 or month < 1 or month > 12 or day < 1 or day > last:
        return np.int64(NO_MOMENT)
    shifted = year - 1 if month <= 2 else year
    era = shifted // 400
    of_era = shifted - era * 400
    of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


@kernel
def clock_of(texts: Bytes, first: Integer, end: Integer) -> Integer:
    """Returns the microseconds of a time such as 12:34:56.789. The hours can have any number of digits."""
    colon = first
    while texts[colon] != 58:
        colon += 1
    seconds = digits_of(texts, first, colon) * 3600 + digits_of(texts, colon + 1, colon + 3) * 60
    seconds += digits_of(texts, colon + 4, colon + 6)
    fraction, scale = np.int64(0), np.int64(SECOND_MICROS)
    for index in range(colon + 7, end):
        scale //= 10
        fraction += (np.int64(texts[index]) - 48) * scale
    return seconds * SECOND_MICROS + fraction


@kernel
def iso_size(texts: Bytes, first: Integer, end: Integer) -> Integer:
    """Returns how many bytes `put_iso` writes for the text texts[first:end]."""
    size = end - first
    for index in range(first, end):
        size -= texts[index] >= 0xC0
    return size


@kernel
def put_iso(out: Bytes, at: Integer, texts: Bytes, first: Integer, end: Integer) -> Integer:
    """Writes the bytes of a binary value. The value's text has one ISO 8859-1 character per byte, encoded as UTF-8. Returns the offset
    after the bytes.
    """
    index = first
    while index < end:
        byte = np.int64(texts[index])
        if byte >= 0xC0:
            index += 1
            byte = (byte & 3) << 6 | (np.int64(texts[index]) & 0x3F)
        out[at] = byte
        at += 1
        index += 1
    return at


@nb.njit(inline="always")
def image_of(sizes: Int64s, column: Integer, image: Integer, other: Integer) -> Integer:
    """Returns the image from which to read a column's value: `image`, or `other` if `image` omits the column. An update's after image may
    omit columns that the update does not change.
    """
    return other if sizes[column, image] == ABSENT else image


@kernel
def room_of(units: RowUnits, columns: RowColumns, values: ShownValues, frame: Pieces) -> Integer:
    """Returns an upper bound for the total size of all messages in bytes."""
    constant, sizes = frame.starts[-1] + MESSAGE_BYTES, values.sizes
    total = np.int64(0)
    for unit in range(units.kinds.shape[0]):
        kind, before = units.kinds[unit], units.images[unit]
        after = before + (kind == KIND_UPDATE)
        mark = units.marks[unit]
        total += constant + units.gtids.starts[mark + 1] - units.gtids.starts[mark]
        for column in range(sizes.shape[0]):
            is_decimal = columns.kinds[column] == DECIMAL or columns.kinds[column] == UNSIGNED
            overhead = DECIMAL_BYTES if is_decimal else CELL_BYTES
            own = image_of(sizes, column, after, before)
            for image in (own, before):
                size = sizes[column, image]
                if size == ABSENT:
                    total += columns.names.starts[column + 1] - columns.names.starts[column]
                total += (1 + columns.keys[column]) * (size + overhead if size >= 0 else 1)
    return total


@kernel
def gather_shown(values: ShownValues, column: Integer, offsets: Int64s, out: Bytes) -> None:
    """Copies the texts of one column's values to `out`, back to back, and writes the offsets of the texts to `offsets`."""
    at = np.int64(0)
    for image in range(values.sizes.shape[1]):
        offsets[image] = at
        size = values.sizes[column, image]
        if size > 0:
            at = put_bytes(out, at, values.texts, values.starts[column, image], size)
    offsets[values.sizes.shape[1]] = at
