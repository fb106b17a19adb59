"""Kernels that print numbers, dates and times of a binary JSON document. Called by `print_values`.

Each kernel gets a value, or the value's offset in `buffer`, and the offset in `out` at which the text begins. The kernel returns the offset
after the text, or a negative status (`statuses`). The caller ensures that the value is within the buffer, and that `out` has NUMBER_ROOM
free bytes. The text follows the server's my_gcvt (strings/dtoa.cc), decimal2string and my_TIME_to_str.
"""
# ruff: noqa: PLR0917 - a kernel takes each array as an argument

from __future__ import annotations

import numpy as np

from sluice.cdc_engine.binlog.compiled import Integer, kernel
from sluice.cdc_engine.binlog.documents.doubles import shortest_digits
from sluice.cdc_engine.binlog.documents.statuses import NO_DECIMAL, NO_NUMBER, TRUNCATED
from sluice.cdc_engine.binlog.little_endian import little_endian
from sluice.cdc_engine.contracts import Bytes

# The maximum number of bytes of a printed number. The limit is this high because, in a damaged document, a decimal can have a precision of
# 255 digits.
NUMBER_ROOM = 300
FIXED_DIGITS_MAX = 15  # The server prints doubles from 1e-15 up to, but not including, 1e15 without an exponent.
MOMENT_BYTES = 8
MINUS, POINT, ZERO, QUOTE, HYPHEN, COLON, SPACE, EXPONENT = (ord(sign) for sign in '-.0"-: e')
NOTHING, TEN, FIRST_DIGIT = np.uint64(0), np.uint64(10), np.uint64(ord("0"))
POWERS = np.array([10**power for power in range(20)], np.uint64)
BYTES_OF_DIGITS = np.array([0, 1, 1, 2, 2, 3, 3, 4, 4, 4], np.int64)


@kernel
def print_digits(out: Bytes, at: Integer, value: Integer, digits: Integer) -> Integer:
    """Writes the last `digits` decimal digits of a uint64. A number with fewer digits gets leading zeros."""
    for index in range(digits):
        out[at + digits - 1 - index] = FIRST_DIGIT + value % TEN
        value //= TEN
    return at + digits


@kernel
def digits_of(value: Integer) -> Integer:
    """Returns the number of digits of a uint64, at least one."""
    digits = np.int64(1)
    while digits < POWERS.shape[0] and value >= POWERS[digits]:
        digits += 1
    return digits


@kernel
def print_padded(out: Bytes, at: Integer, value: Integer, digits: Integer) -> Integer:
    """Writes a non-negative int64, padded with zeros to at least `digits` digits."""
    number = np.uint64(value)
    return print_digits(out, at, number, max(digits, digits_of(number)))


@kernel
def print_integer(out: Bytes, at: Integer, value: Integer, signed: bool) -> Integer:
    """Writes an int64 in decimal. If `signed` is False, the 64 bits are an unsigned number."""
    number = np.uint64(value)
    if signed and value < 0:
        out[at] = MINUS
        at += 1
        number = np.uint64(-value)
    return print_digits(out, at, number, digits_of(number))


@kernel
def print_double(out: Bytes, at: Integer, bits: Integer) -> Integer:
    """Writes a double with the fewest digits that identify it, and with an exponent if the double is very large or small. `bits`: the
    double's bits as int64.
    """
    exponent, fraction = bits >> 52 & 0x7FF, bits & ((np.int64(1) << 52) - 1)
    if exponent == 0x7FF:
        return NO_NUMBER
    if bits < 0:
        out[at] = MINUS
        at += 1
    digits, power = NOTHING, np.int64(0)
    if exponent or fraction:
        digits, power = shortest_digits(fraction, exponent)
        while digits % TEN == NOTHING:
            digits //= TEN
            power += 1
    count = digits_of(digits)
    point = count + power
    if point <= -FIXED_DIGITS_MAX or point > FIXED_DIGITS_MAX:
        return print_with_exponent(out, at, digits, count, point - 1)
    return print_fixed(out, at, digits, count, point)


@kernel
def print_with_exponent(out: Bytes, at: Integer, digits: Integer, count: Integer, power: Integer) -> Integer:
    print_digits(out, at + 1, digits, count)
    out[at] = out[at + 1]
    at += 1
    if count > 1:
        out[at] = POINT
        at += count
    out[at] = EXPONENT
    return print_integer(out, at + 1, power, True)


@kernel
def print_fixed(out: Bytes, at: Integer, digits: Integer, count: Integer, point: Integer) -> Integer:
    """Writes the number 0.<digits> * 10 ** point without an exponent. A whole number ends with `.0`. `count`: how many decimal digits
    `digits` has.
    """
    if point <= 0:
        out[at], out[at + 1] = ZERO, POINT
        at = print_digits(out, at + 2, NOTHING, -point)
        return print_digits(out, at, digits, count)
    if point >= count:
        at = print_digits(out, at, digits, count)
        at = print_digits(out, at, NOTHING, point - count)
        out[at], out[at + 1] = POINT, ZERO
        return at + 2
    print_digits(out, at, digits // POWERS[count - point], point)
    out[at + point] = POINT
    return print_digits(out, at + point + 1, digits, count - point)


@kernel
def print_decimal(buffer: Bytes, start: Integer, size: Integer, out: Bytes, at: Integer) -> Integer:
    """Writes a DECIMAL with at most one leading zero. From `start` on, the buffer has the precision, the scale and the packed digits
    (`column_types.decimals`) of the DECIMAL.
    """
    if size < 3:
        return TRUNCATED
    precision, scale = np.int64(buffer[start]), np.int64(buffer[start + 1])
    if precision == 0 or scale > precision:
        return NO_DECIMAL
    offset, end, digits, whole = start + 2, start + size, np.int64(0), precision - scale
    negative = buffer[offset] < 0x80
    if negative:
        out[at] = MINUS
        at += 1
    first = at
    while digits < precision:
        group = group_size(digits, whole, precision)
        if offset + BYTES_OF_DIGITS[group] > end:
            return TRUNCATED
        value = group_value(buffer, offset, BYTES_OF_DIGITS[group], offset == start + 2, negative)
        if value >= POWERS[group]:
            return NO_DECIMAL
        offset += BYTES_OF_DIGITS[group]
        if digits == whole:
            at = begun_fraction(out, first, at)
        at = print_group(out, first, at, value, group, bool(digits < whole))
        digits += group
    return at if scale else begun_fraction(out, first, at) - 1


@kernel
def group_size(digits: Integer, whole: Integer, precision: Integer) -> Integer:
    """Returns the number of decimal digits in the next group of bytes: nine, or fewer in the first and in the last group. `digits`: the
    number of digits before this group. `whole`: the number of digits before the decimal point.
    """
    if digits == 0 and whole % 9:
        return whole % 9
    return np.int64(9) if digits < whole else min(np.int64(9), precision - digits)


@kernel
def group_value(buffer: Bytes, at: Integer, size: Integer, first: bool, inverted: bool) -> Integer:
    value = np.int64(0)
    for index in range(size):
        byte = np.int64(buffer[at + index])
        if first and index == 0:
            byte ^= 0x80
        value = value << 8 | (byte ^ 0xFF if inverted else byte)
    return np.uint64(value)


@kernel
def print_group(out: Bytes, first: Integer, at: Integer, value: Integer, digits: Integer, whole: bool) -> Integer:
    """Writes one group of digits of a DECIMAL to `out`, and returns the offset after the digits. `whole`: whether the group is before the
    decimal point. If so, leading zeros of the number are omitted. `first`: the offset of the number's first digit.
    """
    if whole and at == first:
        return print_digits(out, at, value, digits_of(value)) if value else at
    return print_digits(out, at, value, digits)


@kernel
def begun_fraction(out: Bytes, first: Integer, at: Integer) -> Integer:
    """Writes the decimal point, after a zero if the number has no digit yet. `first`: where the number's digits begin in `out`."""
    if at == first:
        out[at] = ZERO
        at += 1
    out[at] = POINT
    return at + 1


@kernel
def print_moment(buffer: Bytes, start: Integer, date: bool, clock: bool, out: Bytes, at: Integer) -> Integer:
    """Writes a packed date or time in quotes. `date`: whether the text has a date. `clock`: whether the text has a time of day. The lowest
    24 bits of the packed value are microseconds.
    """
    packed = little_endian(buffer, start, MOMENT_BYTES)
    size = np.uint64(-packed if packed < 0 else packed)
    whole, micros = np.int64(size >> np.uint64(24)), np.int64(size & np.uint64(0xFFFFFF))
    out[at] = QUOTE
    at += 1
    if date:
        months = whole >> 22
        at = print_padded(out, at, months // 13, 4)
        out[at] = HYPHEN
        at = print_padded(out, at + 1, months % 13, 2)
        out[at] = HYPHEN
        at = print_padded(out, at + 1, whole >> 17 & 31, 2)
    elif packed < 0:
        out[at] = MINUS
        at += 1
    if clock:
        if date:
            out[at] = SPACE
            at += 1
        at = print_clock(out, at, whole >> 12 & (31 if date else 0x3FF), whole, micros)
    out[at] = QUOTE
    return at + 1


@kernel
def print_clock(out: Bytes, at: Integer, hours: Integer, whole: Integer, micros: Integer) -> Integer:
    at = print_padded(out, at, hours, 2)
    out[at] = COLON
    at = print_padded(out, at + 1, whole >> 6 & 63, 2)
    out[at] = COLON
    at = print_padded(out, at + 1, whole & 63, 2)
    out[at] = POINT
    return print_padded(out, at + 1, micros, 6)
