"""Kernels that encode rows as Avro, from the texts that consumers see. Called by `rows`.

`room_of` returns an upper bound of the bytes, `put_messages` writes them.
"""
# ruff: noqa: PLR0917, PLR1714, SIM109 - numba knows no keyword-only arguments; a comparison is a branch, a set is none that it knows

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np

from sluice.cdc_engine.binlog.compiled import Integer, kernel
from sluice.cdc_engine.binlog.entries.assemble import ABSENT
from sluice.cdc_engine.binlog.entries.flat_json import put_piece
from sluice.cdc_engine.binlog.entries.kernel_arguments import Pieces, ShownValues
from sluice.cdc_engine.binlog.entries.protobuf import put_bytes
from sluice.cdc_engine.binlog.rows.locate import KIND_DELETE, KIND_INSERT, KIND_UPDATE
from sluice.cdc_engine.contracts import Bytes, Int8s, Int64s

# The kinds of `schema.AvroKind`.
LONG, DECIMAL, DATE, DATETIME, TIME, FLOAT, DOUBLE, STRING, BYTES = range(9)
# The pieces of a message: before key and value, and parts of its source.
KEY_HEAD, VALUE_HEAD, FILE, TABLE, NOW = range(5)
CELL_BYTES, DECIMAL_BYTES = 16, 48  # The most bytes that a value takes beside its text.
MESSAGE_BYTES = 64  # The most bytes of a message beside its values and pieces.
LIMBS, LIMB_BITS, LIMB = 8, 32, 0xFFFFFFFF  # A decimal of 65 digits has 216 bits.
DAY_MICROS, SECOND_MICROS = 86_400_000_000, 1_000_000
MINUS, DOT = 45, 46
OPS = np.frombuffer(b"cud", np.uint8)


class AvroColumns(NamedTuple):
    """The columns of a table: `kinds`, `scales` of decimals, `keys`: which are the key. `bits`: where the bits of a real are; -1: other.
    `names`: encoded.
    """

    kinds: Int8s
    scales: Int64s
    keys: Int8s
    bits: Int64s
    names: Pieces


class AvroValues(NamedTuple):
    """The values to encode. `bits`: those of FLOAT and DOUBLE columns, by images; `limbs`: room for one decimal."""

    shown: ShownValues
    bits: Int64s
    limbs: Int64s


class AvroUnits(NamedTuple):
    """One value per message: kind, first image, and the source of its event. `gtids`: encoded; `marks`: the index in it."""

    kinds: Int8s
    images: Int64s
    offsets: Int64s
    ms: Int64s
    servers: Int64s
    gtids: Pieces
    marks: Int64s


@nb.njit(inline="always")
def put_long(out: Bytes, at: Integer, value: Integer) -> Integer:
    """Writes a number in zigzag form."""
    left = (value << 1) ^ (value >> 63)
    while left & ~0x7F:
        out[at] = left & 0x7F | 0x80
        left = (left >> 7) & 0x1FFFFFFFFFFFFFF
        at += 1
    out[at] = left
    return at + 1


@nb.njit(inline="always")
def digits_of(texts: Bytes, first: Integer, end: Integer) -> Integer:
    """Reads a number without a sign."""
    found = np.int64(0)
    for index in range(first, end):
        found = found * 10 + (np.int64(texts[index]) - 48)
    return found


@kernel
def days_of(texts: Bytes, first: Integer) -> Integer:
    """Returns the days from 1970-01-01 to a date; a number below -1000000 if the calendar has no such day from year 1 on."""
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
        return np.int64(-2_000_000)
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
def put_decimal(
    out: Bytes, at: Integer, texts: Bytes, first: Integer, end: Integer, scale: Integer, limbs: Int64s
) -> Integer:
    """Writes a decimal: its unscaled value in two's complement, the highest byte first."""
    for index in range(LIMBS):
        limbs[index] = 0
    negative = texts[first] == MINUS
    missing, used, seen_dot = scale, 1, False
    for index in range(first + negative, end):
        if texts[index] == DOT:
            seen_dot = True
            continue
        used = times_ten(limbs, used, np.int64(texts[index]) - 48)
        missing -= seen_dot
    for _ in range(missing):
        used = times_ten(limbs, used, np.int64(0))
    if negative:
        carry = np.int64(1)
        for index in range(LIMBS):
            carry += ~limbs[index] & LIMB
            limbs[index] = carry & LIMB
            carry >>= LIMB_BITS
    size = LIMBS * 4
    while size > 1:
        high, next_high = byte_of(limbs, size - 1), byte_of(limbs, size - 2)
        if not ((high == 0 and next_high < 128) or (high == 255 and next_high >= 128)):
            break
        size -= 1
    at = put_long(out, at, size)
    for index in range(size):
        out[at + index] = byte_of(limbs, size - 1 - index)
    return at + size


@nb.njit(inline="always")
def byte_of(limbs: Int64s, index: Integer) -> Integer:
    return limbs[index >> 2] >> (8 * (index & 3)) & 0xFF


@nb.njit(inline="always")
def times_ten(limbs: Int64s, used: Integer, digit: Integer) -> Integer:
    """Multiplies a number by ten and adds a digit. Returns how many limbs it has."""
    carry = digit
    for limb in range(used):
        carry += limbs[limb] * 10
        limbs[limb] = carry & LIMB
        carry >>= LIMB_BITS
    if carry:
        limbs[used] = carry
        used += 1
    return used


@nb.njit(inline="always")
def put_bits(out: Bytes, at: Integer, bits: Integer, size: Integer) -> Integer:
    for index in range(size):
        out[at + index] = bits >> (8 * index) & 0xFF
    return at + size


@kernel
def put_text(out: Bytes, at: Integer, texts: Bytes, first: Integer, end: Integer, is_iso: bool) -> Integer:
    """Writes text, or the bytes whose numbers its characters have (`is_iso`)."""
    if not is_iso:
        return put_bytes(out, put_long(out, at, end - first), texts, first, end - first)
    size = end - first
    for index in range(first, end):
        size -= texts[index] >= 0xC0
    at = put_long(out, at, size)
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


@kernel
def put_value(
    out: Bytes,
    at: Integer,
    columns: AvroColumns,
    column: Integer,
    image: Integer,
    values: AvroValues,
) -> Integer:
    """Writes a value as a union of null and its type. A date that the calendar does not have is null."""
    starts, sizes, _, texts = values.shown
    size, first = sizes[column, image], starts[column, image]
    if size < 0:
        out[at] = 0
        return at + 1
    kind, end = columns.kinds[column], first + size
    out[at] = 2
    if kind == LONG:
        negative = texts[first] == MINUS
        number = digits_of(texts, first + negative, end)
        return put_long(out, at + 1, -number if negative else number)
    if kind == STRING or kind == BYTES:
        return put_text(out, at + 1, texts, first, end, kind == BYTES)
    if kind == DECIMAL:
        return put_decimal(out, at + 1, texts, first, end, columns.scales[column], values.limbs)
    if kind == FLOAT or kind == DOUBLE:
        return put_bits(out, at + 1, values.bits[columns.bits[column], image], 4 if kind == FLOAT else 8)
    if kind == TIME:
        negative = texts[first] == MINUS
        micros = clock_of(texts, first + negative, end)
        return put_long(out, at + 1, -micros if negative else micros)
    days = days_of(texts, first)
    if days < -1_000_000:
        out[at] = 0
        return at + 1
    moment = days if kind == DATE else days * DAY_MICROS + clock_of(texts, first + 11, end)
    return put_long(out, at + 1, moment)


@nb.njit(inline="always")
def image_of(sizes: Int64s, column: Integer, image: Integer, other: Integer) -> Integer:
    """Returns the image with a column's value: `other` if the image omits the column, because an update did not change it."""
    return other if sizes[column, image] == ABSENT else image


@kernel
def put_row(
    out: Bytes,
    at: Integer,
    columns: AvroColumns,
    only_keys: bool,
    image: Integer,
    other: Integer,
    values: AvroValues,
) -> Integer:
    for column in range(values.shown.sizes.shape[0]):
        if not only_keys or columns.keys[column]:
            own = image_of(values.shown.sizes, column, image, other)
            at = put_value(out, at, columns, column, own, values)
    return at


@kernel
def put_omitted(
    out: Bytes, at: Integer, columns: AvroColumns, image: Integer, other: Integer, sizes: Int64s
) -> Integer:
    """Writes an array with the names of the columns that neither image has."""
    omitted = np.int64(0)
    for column in range(sizes.shape[0]):
        omitted += sizes[column, image_of(sizes, column, image, other)] == ABSENT
    if omitted:
        at = put_long(out, at, omitted)
        for column in range(sizes.shape[0]):
            if sizes[column, image_of(sizes, column, image, other)] == ABSENT:
                at = put_piece(out, at, columns.names, column, True)
    out[at] = 0
    return at + 1


@kernel
def put_messages(
    out: Bytes,
    units: AvroUnits,
    columns: AvroColumns,
    values: AvroValues,
    frame: Pieces,
    key_ends: Int64s,
    ends: Int64s,
) -> None:
    """Writes the key and the value of each message. Records in `key_ends` and `ends` where they end."""
    at = np.int64(0)
    has_key = frame.starts[KEY_HEAD + 1] > frame.starts[KEY_HEAD]
    for unit in range(units.kinds.shape[0]):
        kind, before = units.kinds[unit], units.images[unit]
        after = before + (kind == KIND_UPDATE)
        if has_key:
            at = put_piece(out, at, frame, KEY_HEAD, True)
            at = put_row(out, at, columns, True, after, before, values)
        key_ends[unit] = at
        at = put_piece(out, at, frame, VALUE_HEAD, True)
        out[at] = 0 if kind == KIND_INSERT else 2
        at += 1
        if kind != KIND_INSERT:
            at = put_row(out, at, columns, False, before, before, values)
        out[at] = 0 if kind == KIND_DELETE else 2
        at += 1
        if kind != KIND_DELETE:
            at = put_row(out, at, columns, False, after, before, values)
        at = put_piece(out, at, frame, FILE, True)
        at = put_long(out, at, units.offsets[unit])
        at = put_piece(out, at, units.gtids, units.marks[unit], True)
        at = put_long(out, at, units.ms[unit])
        at = put_long(out, at, units.servers[unit])
        at = put_piece(out, at, frame, TABLE, True)
        out[at] = 2
        out[at + 1] = OPS[kind - KIND_INSERT]
        at = put_piece(out, at + 2, frame, NOW, True)
        at = put_omitted(out, at, columns, after, before, values.shown.sizes)
        if kind == KIND_INSERT:
            out[at] = 0
            at += 1
        else:
            at = put_omitted(out, at, columns, before, before, values.shown.sizes)
        ends[unit] = at


@kernel
def room_of(units: AvroUnits, columns: AvroColumns, values: ShownValues, frame: Pieces) -> Integer:
    """Returns an upper bound of the bytes of all messages."""
    constant, sizes = frame.starts[-1] + MESSAGE_BYTES, values.sizes
    total = np.int64(0)
    for unit in range(units.kinds.shape[0]):
        kind, before = units.kinds[unit], units.images[unit]
        after = before + (kind == KIND_UPDATE)
        mark = units.marks[unit]
        total += constant + units.gtids.starts[mark + 1] - units.gtids.starts[mark]
        for column in range(sizes.shape[0]):
            beside = DECIMAL_BYTES if columns.kinds[column] == DECIMAL else CELL_BYTES
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
