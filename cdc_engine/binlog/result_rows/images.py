"""Kernels that convert values of the binary protocol to their form in row images. Called by `result_types`.

So the decoder of row images decodes both: a value that a snapshot reads equals the value from the stream, for every type and every policy
of a table (zero dates, text, undecodable values). Integers, floats, bits and strings have the same form in both protocols. This module
converts the other types.

The server sends, with the bytes of each field: a date or timestamp as year (2), month, day, hour, minute, second (1 each), microseconds
(4), without trailing zeros; a time as sign (1), days (4), hour, minute, second, microseconds (4); a decimal as its digits.
"""
# ruff: noqa: PLR0917 - a kernel takes every array it touches by name

from __future__ import annotations

import numpy as np

from sluice.cdc_engine.binlog.column_types.dates import DATETIME2_ZERO, NO_DATE, days_from_civil
from sluice.cdc_engine.binlog.column_types.entry import Values
from sluice.cdc_engine.binlog.compiled import Integer, compiled
from sluice.cdc_engine.binlog.little_endian import little_endian
from sluice.cdc_engine.contracts import Bytes, Int64s

NOT_A_VALUE = -2  # This is returned instead of a row if all values are valid.


@compiled
def put_big_endian(out: Bytes, at: Integer, size: Integer, value: Integer) -> None:
    """Writes the lowest `size` bytes of a value, highest first."""
    for index in range(size):
        out[at + index] = (value >> np.int64(8 * (size - 1 - index))) & 0xFF


@compiled
def byte_of(buffer: Bytes, start: Integer, size: Integer, offset: Integer) -> Integer:
    """Returns one byte of the value, by its index; 0 if the value omits it."""
    return np.int64(buffer[start + offset]) if offset < size else np.int64(0)


@compiled
def fraction_of(buffer: Bytes, start: Integer, size: Integer, offset: Integer, digits: Integer) -> Integer:
    """Returns the microseconds at an index of the value, in the unit of an image with this many fraction digits."""
    micros = little_endian(buffer, start + offset, 4) if size >= offset + 4 else np.int64(0)
    return micros // (10_000 if digits <= 2 else 100 if digits <= 4 else 1)


@compiled
def date_images(buffer: Bytes, starts: Int64s, sizes: Int64s, out: Bytes) -> None:
    """Converts DATE: year << 9 | month << 5 | day in three bytes, lowest first."""
    for row in range(starts.shape[0]):
        start, size = starts[row], sizes[row]
        if start < 0:
            continue
        year = byte_of(buffer, start, size, 0) | byte_of(buffer, start, size, 1) << 8
        packed = year << 9 | byte_of(buffer, start, size, 2) << 5 | byte_of(buffer, start, size, 3)
        for index in range(3):
            out[row * 3 + index] = (packed >> np.int64(8 * index)) & 0xFF


@compiled
def datetime_images(buffer: Bytes, starts: Int64s, sizes: Int64s, digits: Integer, width: Integer, out: Bytes) -> None:
    """Converts DATETIME2: five bytes and the fraction's."""
    for row in range(starts.shape[0]):
        start, size = starts[row], sizes[row]
        if start < 0:
            continue
        year = byte_of(buffer, start, size, 0) | byte_of(buffer, start, size, 1) << 8
        months = year * 13 + byte_of(buffer, start, size, 2)
        clock = byte_of(buffer, start, size, 4) << 12 | byte_of(buffer, start, size, 5) << 6
        packed = months << 22 | byte_of(buffer, start, size, 3) << 17 | clock | byte_of(buffer, start, size, 6)
        put_big_endian(out, row * width, 5, packed + DATETIME2_ZERO)
        put_big_endian(out, row * width + 5, width - 5, fraction_of(buffer, start, size, 7, digits))


@compiled
def timestamp_images(
    buffer: Bytes, starts: Int64s, sizes: Int64s, digits: Integer, width: Integer, out: Bytes
) -> Integer:
    """Converts TIMESTAMP2, sent in UTC: seconds since 1970 in four bytes and the fraction's. Returns the first row that
    is not a valid time, or NOT_A_VALUE.
    """
    for row in range(starts.shape[0]):
        start, size = starts[row], sizes[row]
        if start < 0 or size == 0:
            continue  # A zero timestamp was sent without bytes.
        year = byte_of(buffer, start, size, 0) | byte_of(buffer, start, size, 1) << 8
        days = days_from_civil(year, byte_of(buffer, start, size, 2), byte_of(buffer, start, size, 3))
        clock = byte_of(buffer, start, size, 4) * 3600 + byte_of(buffer, start, size, 5) * 60
        seconds = days * 86400 + clock + byte_of(buffer, start, size, 6)
        if days == NO_DATE or seconds < 0 or seconds > 0xFFFFFFFF:
            return row
        put_big_endian(out, row * width, 4, seconds)
        put_big_endian(out, row * width + 4, width - 4, fraction_of(buffer, start, size, 7, digits))
    return NOT_A_VALUE


@compiled
def time_images(buffer: Bytes, starts: Int64s, sizes: Int64s, digits: Integer, width: Integer, out: Bytes) -> None:
    """Converts TIME2: a number of three bytes and the fraction's, negated as a whole, with the highest bit as offset."""
    for row in range(starts.shape[0]):
        start, size = starts[row], sizes[row]
        if start < 0:
            continue
        days = little_endian(buffer, start + 1, 4) if size >= 8 else np.int64(0)
        hours = days * 24 + byte_of(buffer, start, size, 5)
        clock = hours << 12 | byte_of(buffer, start, size, 6) << 6 | byte_of(buffer, start, size, 7)
        number = clock << np.int64(8 * (width - 3)) | fraction_of(buffer, start, size, 8, digits)
        if byte_of(buffer, start, size, 0):
            number = -number
        put_big_endian(out, row * width, width, number + (np.int64(1) << np.int64(8 * width - 1)))


@compiled
def year_images(buffer: Bytes, starts: Int64s, out: Bytes) -> None:
    """Converts YEAR: years since 1900 in a byte, 0 for 0."""
    for row in range(starts.shape[0]):
        if starts[row] >= 0:
            year = little_endian(buffer, starts[row], 2)
            out[row] = year - 1900 if year else 0


@compiled
def digits_between(buffer: Bytes, first: Integer, last: Integer) -> Integer:
    """Returns the number that the digits form, or -1 if one is not a digit."""
    value = np.int64(0)
    for index in range(first, last):
        digit = np.int64(buffer[index]) - 48
        if digit < 0 or digit > 9:
            return -1
        value = value * 10 + digit
    return value


@compiled
def decimal_images(
    buffer: Bytes, starts: Int64s, sizes: Int64s, groups: Int64s, byte_counts: Int64s, scale: Integer, out: Bytes
) -> Integer:
    """Converts DECIMAL: groups of digits, whole groups from the point to the left, in as few bytes as they need;
    inverted if negative.

    `groups`: digits of each group; `byte_counts`: bytes by digits; `out`: zeros. Returns the first row that is not such
    a number, or NOT_A_VALUE.
    """
    width, precision = np.int64(0), np.int64(0)
    for index in range(groups.shape[0]):
        width += byte_counts[groups[index]]
        precision += groups[index]
    for row in range(starts.shape[0]):
        at, end = starts[row], starts[row] + sizes[row]
        if at < 0:
            continue
        negative = sizes[row] > 0 and buffer[at] == 45
        if negative:
            at += 1
        # Where the digits of the integer part and of the fraction would begin if all of them were sent.
        point = end - scale - 1 if scale else end
        if at > point or (scale and buffer[point] != 46):
            return row
        while at < point and buffer[at] == 48:
            at += 1  # A ZEROFILL column has leading zeros.
        if point - at > precision - scale:
            return row
        offset, write, whole_left = point - (precision - scale), row * width, precision - scale
        for index in range(groups.shape[0]):
            if whole_left == 0:
                offset = point + 1
                whole_left = -1
            value = digits_between(buffer, max(offset, at), max(offset + groups[index], at))
            if value < 0:
                return row
            put_big_endian(out, write, byte_counts[groups[index]], ~value if negative else value)
            offset += groups[index]
            write += byte_counts[groups[index]]
            if whole_left > 0:
                whole_left -= groups[index]
        out[row * width] ^= 0x80
    return NOT_A_VALUE


def images_of(values: Values, out: Bytes, width: int) -> Values:
    """Returns the values with their images in `out`, `width` bytes each."""
    starts = np.arange(values.count, dtype=np.int64) * width
    starts[values.starts < 0] = -1
    return Values(out, starts, np.where(values.starts < 0, 0, width).astype(np.int64))
