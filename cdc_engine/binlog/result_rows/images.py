"""Kernels that convert values from the binary protocol of a SELECT result to the form of row images. Called by `result_types`.

After the conversion, the same column types decode the rows of snapshots and of row events. So the lake gets the same value from a snapshot
and from a row event, for every type and every policy of a table (zero dates, charsets, undecodable values). Integers, floats, bits and
strings have the same form in the binary protocol and in row images. This file converts the other types.

The server sends a date or timestamp as year (2 bytes), month, day, hour, minute, second (1 each) and microseconds (4), without trailing
zeros. A time consists of sign (1), days (4), hour, minute, second (1 each) and microseconds (4). A decimal is sent as text.
"""
# ruff: noqa: PLR0917 - a kernel takes each array as an argument

from __future__ import annotations

import numpy as np

from sluice.cdc_engine.binlog.column_types.dates import DATETIME2_ZERO, NO_DATE, days_from_civil
from sluice.cdc_engine.binlog.column_types.entry import Values
from sluice.cdc_engine.binlog.compiled import Integer, compiled
from sluice.cdc_engine.binlog.little_endian import little_endian
from sluice.cdc_engine.contracts import Bytes, Int64s

# A kernel returns this if all values are valid. Otherwise it returns the index of the first row whose value is invalid.
NOT_A_VALUE = -2


@compiled
def put_big_endian(out: Bytes, at: Integer, size: Integer, value: Integer) -> None:
    """Writes the lowest `size` bytes of a value in big-endian order."""
    for index in range(size):
        out[at + index] = (value >> np.int64(8 * (size - 1 - index))) & 0xFF


@compiled
def byte_of(buffer: Bytes, start: Integer, size: Integer, offset: Integer) -> Integer:
    """Returns the byte at index `offset` of a value, or 0 if the server omitted it as a trailing zero."""
    return np.int64(buffer[start + offset]) if offset < size else np.int64(0)


@compiled
def fraction_of(buffer: Bytes, start: Integer, size: Integer, offset: Integer, digits: Integer) -> Integer:
    """Returns the fraction of a second of a value, as a row image with `digits` fraction digits stores it. In the binary protocol, the
    microseconds are at index `offset` of the value. The server omits the microseconds if they are 0.
    """
    micros = little_endian(buffer, start + offset, 4) if size >= offset + 4 else np.int64(0)
    return micros // (10_000 if digits <= 2 else 100 if digits <= 4 else 1)


@compiled
def date_images(buffer: Bytes, starts: Int64s, sizes: Int64s, out: Bytes) -> None:
    """Converts dates to DATE's row image: year << 9 | month << 5 | day, three bytes, little-endian."""
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
    """Converts dates with times to DATETIME2's row image of `width` bytes: five bytes for date and time, then the fraction."""
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
    """Converts UTC timestamps to TIMESTAMP2's row image of `width` bytes: seconds since 1970 in four bytes, then the fraction. Returns the
    index of the first row whose value is not a valid timestamp, or NOT_A_VALUE if all values are valid.
    """
    for row in range(starts.shape[0]):
        start, size = starts[row], sizes[row]
        if start < 0 or size == 0:
            continue  # The server sends a zero timestamp without bytes.
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
    """Converts times to TIME2's row image of `width` bytes: hours, minutes, seconds and fraction as one signed number, to which half of the
    number range is added.
    """
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
    """Converts years to YEAR's row image: one byte with the years since 1900, or 0 for the year 0."""
    for row in range(starts.shape[0]):
        if starts[row] >= 0:
            year = little_endian(buffer, starts[row], 2)
            out[row] = year - 1900 if year else 0


@compiled
def digits_between(buffer: Bytes, first: Integer, last: Integer) -> Integer:
    """Returns the number that the characters buffer[first:last] form, or -1 if one of them is not a digit."""
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
    """Converts decimal texts to DECIMAL's row image: groups of up to nine digits, with all bits inverted if the number is negative.

    `groups`: number of digits in each group. `byte_counts`: bytes of a group, indexed by its number of digits. `out`: must be filled with
    zeros. Returns the index of the first row whose text is not a number of this type, or NOT_A_VALUE if all texts are valid.
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
        # The decimal point is `scale` digits before the end of the text, because the server sends all digits of the scale.
        point = end - scale - 1 if scale else end
        if at > point or (scale and buffer[point] != 46):
            return row
        while at < point and buffer[at] == 48:
            at += 1  # The server sends leading zeros for a ZEROFILL column.
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
    """Returns the converted values as Values. `out`: the converted values, `width` bytes per row. `values`: the values before the
    conversion; a row that is NULL there is NULL in the result.
    """
    starts = np.arange(values.count, dtype=np.int64) * width
    starts[values.starts < 0] = -1
    return Values(out, starts, np.where(values.starts < 0, 0, width).astype(np.int64))
