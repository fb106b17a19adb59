"""Rewrites the shortest decimal texts of floats and doubles in the form of Java's Float.toString and Double.toString."""

from __future__ import annotations

import numpy as np

from sluice.cdc_engine.binlog.compiled import Integer, compiled
from sluice.cdc_engine.contracts import Bytes, Int32s

BYTES_MAX = 32  # The maximum number of bytes of one printed number.
DIGITS_MAX = 24
MINUS, POINT, ZERO, NINE, BIG_E = 45, 46, 48, 57, 69
PLAIN_FROM, PLAIN_UPTO = -3, 6  # Java prints numbers with a decimal exponent in this range without the exponent.


@compiled
def print_java(texts: Bytes, indices: Int32s, offsets: Int32s, out: Bytes) -> Integer:
    """Writes the numbers texts[indices[row] : indices[row + 1]] (empty for NULL) to `out` in Java's form, back to back, and their ends to
    `offsets`. Returns the number of bytes written.
    """
    digits = np.empty(DIGITS_MAX, np.uint8)
    used = np.int64(0)
    offsets[0] = 0
    for row in range(offsets.shape[0] - 1):
        at, end = np.int64(indices[row]), np.int64(indices[row + 1])
        if at < end:
            if texts[at] == MINUS:
                out[used] = MINUS
                used += 1
                at += 1
            count, exponent = _read(texts, at, end, digits)
            used = _put(out, used, digits, count, exponent)
        offsets[row + 1] = used
    return used


@compiled
def _read(texts: Bytes, at: Integer, end: Integer, digits: Bytes) -> tuple[Integer, Integer]:
    """Parses a number, and writes its digits to `digits`, without leading and trailing zeros. Returns (number of digits, exponent of the
    first digit). The number zero has 0 digits.
    """
    count, before, exponent, seen_point, leading = np.int64(0), np.int64(0), np.int64(0), False, np.int64(0)
    while at < end:
        byte = texts[at]
        at += 1
        if byte == POINT:
            seen_point = True
        elif ZERO <= byte <= NINE:
            if count == 0 and byte == ZERO:
                leading += seen_point
                continue
            if count < DIGITS_MAX:
                digits[count] = byte
                count += 1
            before += not seen_point
        else:
            exponent = _exponent(texts, at, end)
            break
    first = before - 1 if before else -leading - 1
    while count > 0 and digits[count - 1] == ZERO:
        count -= 1
    return count, first + exponent


@compiled
def _exponent(texts: Bytes, at: Integer, end: Integer) -> Integer:
    negative, value = False, np.int64(0)
    while at < end:
        if texts[at] == MINUS:
            negative = True
        elif ZERO <= texts[at] <= NINE:
            value = value * 10 + np.int64(texts[at]) - ZERO
        at += 1
    return -value if negative else value


@compiled
def _put(out: Bytes, used: Integer, digits: Bytes, count: Integer, exponent: Integer) -> Integer:
    if count == 0:
        exponent = np.int64(0)
    plain = PLAIN_FROM <= exponent <= PLAIN_UPTO
    whole = exponent + 1 if plain else np.int64(1)
    if whole <= 0:
        out[used] = ZERO
        used += 1
    for index in range(max(whole, 0)):
        out[used] = digits[index] if index < count else ZERO
        used += 1
    out[used] = POINT
    used += 1
    for _ in range(-whole if whole < 0 else 0):
        out[used] = ZERO
        used += 1
    first = max(whole, 0)
    if first >= count:
        out[used] = ZERO
        used += 1
    for index in range(first, count):
        out[used] = digits[index]
        used += 1
    return used if plain else _put_exponent(out, used, exponent)


@compiled
def _put_exponent(out: Bytes, used: Integer, exponent: Integer) -> Integer:
    out[used] = BIG_E
    used += 1
    if exponent < 0:
        out[used] = MINUS
        used += 1
        exponent = -exponent
    if exponent >= 100:
        out[used] = ZERO + exponent // 100
        used += 1
    if exponent >= 10:
        out[used] = ZERO + exponent // 10 % 10
        used += 1
    out[used] = ZERO + exponent % 10
    return used + 1
