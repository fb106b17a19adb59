"""Decodes DECIMAL(p, s) from MySQL's packed format (strings/decimal.cc): big-endian groups of nine digits in four bytes, and shorter
groups for the remaining digits.

The highest bit of the first byte is set if the number is not negative. All bits of a negative number are inverted. Columns with up to 38
digits become Arrow's and Spark's decimal. Columns with more digits become the text that SELECT prints.
"""
# ruff: noqa: PLR0917 - a kernel takes each array as an argument

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.cdc_engine.binlog.column_types.entry import (
    AnyArray,
    ColumnType,
    ValueRefusedError,
    Values,
    buffer_of,
    column_type,
)
from sluice.cdc_engine.binlog.compiled import Integer, compiled
from sluice.cdc_engine.binlog.type_codes import TypeCode
from sluice.cdc_engine.contracts import Bytes, Column, Int64s

DIGITS_MAX = 38  # The maximum number of digits of a decimal128.
BYTES_OF_DIGITS = np.array([0, 1, 1, 2, 2, 3, 3, 4, 4, 4], np.int64)
POWERS = np.array([10**exponent for exponent in range(10)], np.int64)


@column_type(TypeCode.NEWDECIMAL)
def decimal(column: Column) -> ColumnType:
    precision, scale = column.metadata >> 8, column.metadata & 0xFF
    groups = digit_groups(precision, scale)
    width = int(BYTES_OF_DIGITS[groups].sum())
    if precision > DIGITS_MAX:
        finish = functools.partial(texts, groups=groups, scale=scale, precision=precision)
        return ColumnType(width=width, arrow=pa.string(), spark="string", finish=finish)
    arrow = pa.decimal128(precision, scale)
    return ColumnType(
        width=width,
        arrow=arrow,
        spark=f"decimal({precision},{scale})",
        finish=functools.partial(_decimals, arrow=arrow, groups=groups),
    )


def digit_groups(precision: int, scale: int) -> Int64s:
    """Returns how many digits each group of bytes of a packed DECIMAL has, in the order of the groups. `precision`: number of all digits.
    `scale`: number of digits after the decimal point.
    """
    whole, fraction = divmod(precision - scale, 9), divmod(scale, 9)
    groups = [whole[1]] * bool(whole[1]) + [9] * (whole[0] + fraction[0]) + [fraction[1]] * bool(fraction[1])
    return np.array(groups, np.int64)


@compiled
def group_value(buffer: Bytes, at: int, size: int, first: bool, inverted: bool) -> Integer:
    """Returns the number that the digits of one group form. `first`: whether the group has the sign bit. `inverted`: whether the DECIMAL
    is negative.
    """
    value = np.int64(0)
    for index in range(size):
        byte = np.int64(buffer[at + index])
        if first and index == 0:
            byte ^= 0x80
        if inverted:
            byte ^= 0xFF
        value = value << 8 | byte
    return value


@compiled
def decode_words(
    buffer: Bytes, starts: Int64s, groups: Int64s, byte_counts: Int64s, powers: Int64s, out: Any
) -> Integer:
    """Decodes decimals to 128-bit two's complement integers, without the decimal point. `out` has one row per decimal: the low and the high
    64 bits (uint64), both 0 for NULL. `groups`: number of digits in each group of bytes. `byte_counts`, `powers`: BYTES_OF_DIGITS and
    POWERS. The computation divides a number into four limbs of 32 bits.

    Returns the first row with an invalid group, or -1.
    """
    mask = np.uint64(0xFFFFFFFF)
    limbs = np.zeros(4, np.uint64)
    for row in range(starts.shape[0]):
        at = starts[row]
        out[row, 0], out[row, 1] = 0, 0
        if at < 0:
            continue
        negative = buffer[at] < 0x80
        limbs[:] = 0
        for index in range(groups.shape[0]):
            value = group_value(buffer, at, byte_counts[groups[index]], index == 0, negative)
            if value >= powers[groups[index]]:
                return row
            carry = np.uint64(value)
            at += byte_counts[groups[index]]
            power = np.uint64(powers[groups[index]])
            for limb in range(4):
                product = limbs[limb] * power + carry
                limbs[limb] = product & mask
                carry = product >> np.uint64(32)
        low, high = limbs[0] | limbs[1] << np.uint64(32), limbs[2] | limbs[3] << np.uint64(32)
        if negative:
            low, high = ~low + np.uint64(1), ~high
            if low == 0:
                high += np.uint64(1)
        out[row, 0], out[row, 1] = low, high
    return -1


@compiled
def decode_digits(
    buffer: Bytes, starts: Int64s, groups: Int64s, byte_counts: Int64s, powers: Int64s, out: Bytes
) -> Integer:
    """Decodes decimals to characters. `out` has one row per decimal: '-' or '+', and then every digit. The other arguments are those of
    `decode_words`. Returns -1, or the first row with an invalid group of digits.
    """
    for row in range(starts.shape[0]):
        at = starts[row]
        if at < 0:
            continue
        negative = buffer[at] < 0x80
        out[row, 0] = 45 if negative else 43
        column = 1
        for index in range(groups.shape[0]):
            value = group_value(buffer, at, byte_counts[groups[index]], index == 0, negative)
            if value >= powers[groups[index]]:
                return row
            at += byte_counts[groups[index]]
            for digit in range(groups[index]):
                out[row, column] = 48 + value // powers[groups[index] - 1 - digit] % 10
                column += 1
    return -1


@compiled
def trim_digits(starts: Int64s, digits: Bytes, scale: int, offsets: Any, out: Bytes) -> int:
    """Writes numbers to `out`, back to back, in the form that SELECT prints: with at most one leading zero, and with all digits of the
    scale. Writes their ends to `offsets`. `digits`: the sign and all digits of each number, as `decode_digits` writes them. Returns the
    number of bytes written.
    """
    used, whole = 0, digits.shape[1] - scale
    offsets[0] = 0
    for row in range(starts.shape[0]):
        if starts[row] >= 0:
            if digits[row, 0] == 45:
                out[used] = 45
                used += 1
            first = 1
            while first < whole and digits[row, first] == 48:
                first += 1
            if first == whole:
                out[used] = 48
                used += 1
            for column in range(first, digits.shape[1]):
                if column == whole:
                    out[used] = 46
                    used += 1
                out[used] = digits[row, column]
                used += 1
        offsets[row + 1] = used
    return used


def _decimals(values: Values, arrow: pa.DataType, groups: Int64s) -> AnyArray:
    words = np.empty((values.count, 2), np.uint64)
    _refuse(decode_words(values.buffer, values.starts, groups, BYTES_OF_DIGITS, POWERS, words))
    return pa.Array.from_buffers(arrow, values.count, [values.validity(), buffer_of(words)])


def texts(values: Values, groups: Int64s, scale: int, precision: int) -> AnyArray:
    digits = np.zeros((values.count, precision + 1), np.uint8)
    _refuse(decode_digits(values.buffer, values.starts, groups, BYTES_OF_DIGITS, POWERS, digits))
    offsets, out = np.zeros(values.count + 1, np.int32), np.empty(values.count * (precision + 3), np.uint8)
    used = trim_digits(values.starts, digits, scale, offsets, out)
    buffers = [values.validity(), buffer_of(offsets), buffer_of(out[:used])]
    return pa.Array.from_buffers(pa.string(), values.count, buffers)


def _refuse(row: int) -> None:
    if row >= 0:
        raise ValueRefusedError(row, "has bytes that are not decimal digits")
