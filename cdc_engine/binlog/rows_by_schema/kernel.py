"""Kernels that the formats share: they read numbers and times from the texts that consumers see. Called by `avro_kernel`, `table`.

`room_of` returns an upper bound of the bytes of all messages.
"""
# ruff: noqa: PLR1714, SIM109 - a comparison is a branch, a set is none that numba knows

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

# The kinds of `columns.ColumnKind`.
INT, LONG, UNSIGNED, DECIMAL, DATE, DATETIME, TIMESTAMP, TIME, FLOAT, DOUBLE, STRING, BYTES = range(12)
# The pieces of a message: before key and value, and parts of its source.
KEY_HEAD, VALUE_HEAD, FILE, TABLE, NOW = range(5)
CELL_BYTES, DECIMAL_BYTES = 16, 48  # The most bytes that a value takes beside its text.
MESSAGE_BYTES = 128  # The most bytes of a message beside its values and pieces.
DAY_MICROS, SECOND_MICROS = 86_400_000_000, 1_000_000
NO_MOMENT = -(2**62)  # Of a day that the calendar does not have.
LIMBS = 8  # A decimal of 65 digits has 216 bits, 32 in each limb.
MINUS = 45
OPS = np.frombuffer(b"cud", np.uint8)


class RowColumns(NamedTuple):
    """The columns of a table: `kinds`, `scales` of decimals, `keys`: which are the key. `bits`: where the bits of a real are; -1: other.
    `names`: encoded.
    """

    kinds: Int8s
    scales: Int64s
    keys: Int8s
    bits: Int64s
    names: Pieces


class SchemaValues(NamedTuple):
    """The values to encode. `bits`: those of FLOAT and DOUBLE columns, by images; `limbs`: room for one decimal."""

    shown: ShownValues
    bits: Int64s
    limbs: Int64s


class RowUnits(NamedTuple):
    """One value per message: kind, first image, and the source of its event. `gtids`: encoded; `marks`: the index in it."""

    kinds: Int8s
    images: Int64s
    offsets: Int64s
    ms: Int64s
    servers: Int64s
    gtids: Pieces
    marks: Int64s


@nb.njit(inline="always")
def put_unsigned(out: Bytes, at: Integer, value: Integer) -> Integer:
    """Writes the 64 bits of a number as a varint, without a sign."""
    while value & ~0x7F:
        out[at] = value & 0x7F | 0x80
        value = (value >> 7) & 0x1FFFFFFFFFFFFFF
        at += 1
    out[at] = value
    return at + 1


@nb.njit(inline="always")
def put_long(out: Bytes, at: Integer, value: Integer) -> Integer:
    """Writes a number in zigzag form."""
    return put_unsigned(out, at, (value << 1) ^ (value >> 63))


@nb.njit(inline="always")
def put_bits(out: Bytes, at: Integer, bits: Integer, size: Integer) -> Integer:
    for index in range(size):
        out[at + index] = bits >> (8 * index) & 0xFF
    return at + size


@nb.njit(inline="always")
def digits_of(texts: Bytes, first: Integer, end: Integer) -> Integer:
    """Reads a number without a sign."""
    found = np.int64(0)
    for index in range(first, end):
        found = found * 10 + (np.int64(texts[index]) - 48)
    return found


@kernel
def number_of(kind: Integer, texts: Bytes, first: Integer, end: Integer) -> Integer:
    """Returns the number of an integer or a time: days of a DATE, microseconds of others. NO_MOMENT: the calendar has no such day."""
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
    """Returns the days from 1970-01-01 to a date; NO_MOMENT if the calendar has no such day from year 1 on."""
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
    """Returns the microseconds of a time such as 12:34:56.789; its hours may have any number of digits."""
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
    """Returns how many bytes text is whose characters are numbers of bytes."""
    size = end - first
    for index in range(first, end):
        size -= texts[index] >= 0xC0
    return size


@kernel
def put_iso(out: Bytes, at: Integer, texts: Bytes, first: Integer, end: Integer) -> Integer:
    """Writes the bytes whose numbers the characters of a text have."""
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
    """Returns the image with a column's value: `other` if the image omits the column, because an update did not change it."""
    return other if sizes[column, image] == ABSENT else image


@kernel
def room_of(units: RowUnits, columns: RowColumns, values: ShownValues, frame: Pieces) -> Integer:
    """Returns an upper bound of the bytes of all messages."""
    constant, sizes = frame.starts[-1] + MESSAGE_BYTES, values.sizes
    total = np.int64(0)
    for unit in range(units.kinds.shape[0]):
        kind, before = units.kinds[unit], units.images[unit]
        after = before + (kind == KIND_UPDATE)
        mark = units.marks[unit]
        total += constant + units.gtids.starts[mark + 1] - units.gtids.starts[mark]
        for column in range(sizes.shape[0]):
            is_decimal = columns.kinds[column] == DECIMAL or columns.kinds[column] == UNSIGNED
            beside = DECIMAL_BYTES if is_decimal else CELL_BYTES
            own = image_of(sizes, column, after, before)
            for image in (own, before):
                size = sizes[column, image]
                if size == ABSENT:
                    total += columns.names.starts[column + 1] - columns.names.starts[column]
                total += (1 + columns.keys[column]) * (size + beside if size >= 0 else 1)
    return total


@kernel
def gather_shown(values: ShownValues, column: Integer, offsets: Int64s, out: Bytes) -> None:
    """Writes the texts of one column one after the other."""
    at = np.int64(0)
    for image in range(values.sizes.shape[1]):
        offsets[image] = at
        size = values.sizes[column, image]
        if size > 0:
            at = put_bytes(out, at, values.texts, values.starts[column, image], size)
    offsets[values.sizes.shape[1]] = at
