"""Decodes TIME(f) into the text that SELECT prints: `[-]HHH:MM:SS.ffffff`, hours with at least two digits, f digits of fraction.

Since MySQL 5.6 (sql-common/my_time.cc), a TIME is a number in big-endian order: hours << 12 | minutes << 6 | seconds, followed by the bytes
of the fraction. For a negative time, the number is negated together with its fraction. The server stores the number plus half of the
number's range, so that the stored number is never negative. Older servers stored the decimal number hhmmss.
"""
# ruff: noqa: PLR0917 - a kernel takes each array as an argument

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.cdc_engine.binlog.column_types import gather as rows_gather
from sluice.cdc_engine.binlog.column_types.dates import MICROS_OF_FRACTION, fraction_bytes
from sluice.cdc_engine.binlog.column_types.entry import (
    AnyArray,
    ColumnType,
    Values,
    buffer_of,
    column_type,
)
from sluice.cdc_engine.binlog.column_types.zero_dates import declared_digits, put_number
from sluice.cdc_engine.binlog.compiled import compiled
from sluice.cdc_engine.binlog.type_codes import TypeCode
from sluice.cdc_engine.contracts import Bytes, Column, Int64s

OLD_TIME_BYTES = (3, 4, 4, 5, 5, 5, 6)  # Bytes of a value in MariaDB's own format, indexed by its fraction digits.
# In MariaDB's own format, the stored number is the time plus this number of seconds, which is one more than the greatest time.
TIME_SECONDS_MAX = 838 * 3600 + 59 * 60 + 59 + 1
# The bytes of the longest valid time, and one more byte: the hours have ten bits, so the hours of an invalid value can have four digits.
TEXT_BYTES_MAX = len("-838:59:59.000000") + 1


@column_type(TypeCode.TIME2)
def time2(column: Column) -> ColumnType:
    width = 3 + fraction_bytes(column.metadata)
    finish = functools.partial(_times2, digits=column.metadata)
    return ColumnType(width=width, arrow=pa.string(), spark="string", finish=finish)


@column_type(TypeCode.TIME)
def time_before_56(column: Column) -> ColumnType:
    digits = declared_digits(column.mysql_type)
    if not digits:
        return ColumnType(width=3, arrow=pa.string(), spark="string", finish=_times)
    finish = functools.partial(_old_times, digits=digits)
    return ColumnType(width=OLD_TIME_BYTES[digits], arrow=pa.string(), spark="string", finish=finish)


@compiled
def print_times(
    starts: Int64s, seconds: Int64s, micros: Int64s, negative: Any, digits: int, offsets: Any, out: Bytes
) -> int:
    """Writes times as text to `out`, back to back. `seconds`: hours << 12 | minutes << 6 | seconds. `micros`: the fraction in microseconds.
    `negative`: whether the time has a minus sign. `digits`: number of fraction digits. Returns the number of bytes written.
    """
    used = 0
    offsets[0] = 0
    for row in range(starts.shape[0]):
        if starts[row] >= 0:
            if negative[row]:
                out[used] = 45
                used += 1
            hours = seconds[row] >> 12 & 0xFFF
            used = put_number(out, used, hours, 2 if hours < 100 else 3 if hours < 1000 else 4)
            out[used] = 58
            used = put_number(out, used + 1, seconds[row] >> 6 & 63, 2)
            out[used] = 58
            used = put_number(out, used + 1, seconds[row] & 63, 2)
            if digits:
                out[used] = 46
                used = put_number(out, used + 1, micros[row] // 10 ** (6 - digits), digits)
        offsets[row + 1] = used
    return used


def _times2(values: Values, digits: int) -> AnyArray:
    fraction = fraction_bytes(digits)
    packed = np.empty(values.count, np.int64)
    rows_gather.big_endian_integers(values.buffer, values.starts, 3 + fraction, packed)
    packed -= 1 << (23 + 8 * fraction)
    size = np.abs(packed)
    micros = (size & ((1 << 8 * fraction) - 1)) * MICROS_OF_FRACTION[fraction]
    return _texts(values, size >> (8 * fraction), micros, packed < 0, digits)


def _times(values: Values) -> AnyArray:
    number = np.empty(values.count, np.int64)
    rows_gather.little_endian_integers(values.buffer, values.starts, 3, True, number)
    size = np.abs(number)
    seconds = size // 10000 << 12 | size // 100 % 100 << 6 | size % 100
    return _texts(values, seconds, np.zeros_like(size), number < 0, 0)


def _old_times(values: Values, digits: int) -> AnyArray:
    """Decodes TIME values with `digits` fraction digits in MariaDB's own format (mysql56_temporal_format=OFF): a big-endian count of units
    of 10 ** -`digits` s. The server adds TIME_SECONDS_MAX, converted to the same unit, so that the count is never negative.
    """
    count = np.empty(values.count, np.int64)
    rows_gather.big_endian_integers(values.buffer, values.starts, OLD_TIME_BYTES[digits], count)
    count -= TIME_SECONDS_MAX * 10**digits
    seconds, fraction = np.divmod(np.abs(count), 10**digits)
    packed = seconds // 3600 << 12 | seconds // 60 % 60 << 6 | seconds % 60
    return _texts(values, packed, fraction * 10 ** (6 - digits), count < 0, digits)


def _texts(values: Values, seconds: Int64s, micros: Int64s, negative: Any, digits: int) -> AnyArray:
    offsets, out = np.empty(values.count + 1, np.int32), np.empty(values.count * TEXT_BYTES_MAX, np.uint8)
    used = print_times(values.starts, seconds, micros, negative, digits, offsets, out)
    buffers = [values.validity(), buffer_of(offsets), buffer_of(out[:used])]
    return pa.Array.from_buffers(pa.string(), values.count, buffers)
