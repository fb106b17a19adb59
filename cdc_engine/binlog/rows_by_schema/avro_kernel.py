"""Numba kernels that encode rows as Avro messages. The input is the text of each value, as Canal clients get it. Called by `avro_rows`."""
# ruff: noqa: PLR0917, PLR1714, SIM109 - numba has no keyword-only arguments; it compiles comparisons, and cannot compile a test in a set

from __future__ import annotations

import numba as nb
import numpy as np

from sluice.cdc_engine.binlog.compiled import Integer, kernel
from sluice.cdc_engine.binlog.entries.assemble import ABSENT
from sluice.cdc_engine.binlog.entries.flat_json import put_piece
from sluice.cdc_engine.binlog.entries.kernel_arguments import Pieces
from sluice.cdc_engine.binlog.entries.protobuf import put_bytes
from sluice.cdc_engine.binlog.rows.locate import KIND_DELETE, KIND_INSERT, KIND_UPDATE
from sluice.cdc_engine.binlog.rows_by_schema.kernel import (
    BYTES,
    DECIMAL,
    DOUBLE,
    FILE,
    FLOAT,
    KEY_HEAD,
    LIMBS,
    LONG,
    MINUS,
    NO_MOMENT,
    NOW,
    OPS,
    STRING,
    TABLE,
    UNSIGNED,
    VALUE_HEAD,
    RowColumns,
    RowUnits,
    SchemaValues,
    image_of,
    iso_size,
    number_of,
    put_bits,
    put_iso,
    put_long,
)
from sluice.cdc_engine.contracts import Bytes, Int64s

LIMB_BITS, LIMB = 32, 0xFFFFFFFF
DOT = 46


@kernel
def put_decimal(
    out: Bytes, at: Integer, texts: Bytes, first: Integer, end: Integer, scale: Integer, limbs: Int64s
) -> Integer:
    """Writes a decimal as Avro bytes: the unscaled value in two's complement, big-endian. Returns the offset after the bytes. `limbs`:
    scratch memory.
    """
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
    """Multiplies the number in `limbs` by ten and adds a digit. `used`: how many limbs the number has before the call. Returns how many
    limbs it has after the call.
    """
    carry = digit
    for limb in range(used):
        carry += limbs[limb] * 10
        limbs[limb] = carry & LIMB
        carry >>= LIMB_BITS
    if carry:
        limbs[used] = carry
        used += 1
    return used


@kernel
def put_value(
    out: Bytes,
    at: Integer,
    columns: RowColumns,
    column: Integer,
    image: Integer,
    values: SchemaValues,
) -> Integer:
    """Writes the value that a column has in an image, as a union of null and the column's type. An invalid date such as 0000-00-00 becomes
    null. Returns the offset after the value.
    """
    starts, sizes, _, texts = values.shown
    size, first = sizes[column, image], starts[column, image]
    kind, end = columns.kinds[column], first + size
    out[at] = 2 if size >= 0 else 0
    if size < 0:
        return at + 1
    if kind == STRING:
        return put_bytes(out, put_long(out, at + 1, size), texts, first, size)
    if kind == BYTES:
        return put_iso(out, put_long(out, at + 1, iso_size(texts, first, end)), texts, first, end)
    if kind == DECIMAL or kind == UNSIGNED:
        return put_decimal(out, at + 1, texts, first, end, columns.scales[column], values.limbs)
    if kind == FLOAT or kind == DOUBLE:
        return put_bits(out, at + 1, values.bits[columns.bits[column], image], 4 if kind == FLOAT else 8)
    number = number_of(kind, texts, first, end)
    if number == NO_MOMENT and kind != LONG:
        out[at] = 0
        return at + 1
    return put_long(out, at + 1, number)


@kernel
def put_row(
    out: Bytes,
    at: Integer,
    columns: RowColumns,
    only_keys: bool,
    image: Integer,
    other: Integer,
    values: SchemaValues,
) -> Integer:
    for column in range(values.shown.sizes.shape[0]):
        if not only_keys or columns.keys[column]:
            own = image_of(values.shown.sizes, column, image, other)
            at = put_value(out, at, columns, column, own, values)
    return at


@kernel
def put_omitted(out: Bytes, at: Integer, columns: RowColumns, image: Integer, other: Integer, sizes: Int64s) -> Integer:
    """Writes an array with the names of the columns that both `image` and `other` omit. Returns the offset after the array."""
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
    units: RowUnits,
    columns: RowColumns,
    values: SchemaValues,
    frame: Pieces,
    key_ends: Int64s,
    ends: Int64s,
) -> None:
    """Writes the key and the value of each message to `out`, the ends of the keys to `key_ends`, and the ends of the values to `ends`.
    `frame`: the encoded parts that are the same in all messages: header of the key, header of the value, binlog file, table and ts_ms.
    """
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
