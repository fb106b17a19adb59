"""Decodes DATE, DATETIME and TIMESTAMP, in the formats of MySQL 5.6 and later (DATETIME2 and TIMESTAMP2, see sql-common/my_time.cc) and in
older formats.

DATETIME has no time zone and becomes `timestamp_ntz`. TIMESTAMP is an instant, stored as UTC seconds. Invalid dates are zero dates, partial
dates and days that do not exist (ALLOW_INVALID_DATES). The setting `zero_dates` of the table in conf/ says what replaces an invalid date;
the default is NULL. Dates in year 0 count as invalid too, because Spark's and Arrow's calendars begin with year 1.
"""
# ruff: noqa: PLR0917 - a kernel takes each array as an argument

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.cdc_engine.binlog.column_types import gather as rows_gather
from sluice.cdc_engine.binlog.column_types.entry import (
    AnyArray,
    ColumnType,
    Values,
    buffer_of,
    column_type,
    validity_of,
)
from sluice.cdc_engine.binlog.column_types.zero_dates import Packed, declared_digits, with_zero_dates
from sluice.cdc_engine.binlog.compiled import compiled
from sluice.cdc_engine.binlog.type_codes import TypeCode
from sluice.cdc_engine.contracts import Column, Int64s

NO_DATE = np.iinfo(np.int64).min  # The kernels write this for an invalid date.
# Microseconds per unit of a fraction, indexed by the fraction's number of bytes: one byte counts hundredths of a second, two bytes count
# ten-thousandths, three bytes millionths.
MICROS_OF_FRACTION = (1, 10_000, 100, 1)
# Bytes of a DATETIME in MariaDB's own format, indexed by its fraction digits.
OLD_DATETIME_BYTES = (8, 6, 6, 7, 7, 7, 8)
# A DATETIME2 has five bytes before the fraction. The server sets the highest of their forty bits in every valid value.
DATETIME2_BYTES, DATETIME2_ZERO = 5, 1 << 39


def fraction_bytes(digits: int) -> int:
    """Returns the number of bytes that store `digits` digits of a second's fraction."""
    return (digits + 1) // 2


@column_type(TypeCode.DATE)
def date(_column: Column) -> ColumnType:
    found = ColumnType(width=3, arrow=pa.date32(), spark="date", finish=_dates, may_become_null=True)
    return with_zero_dates(found, lambda values: (_little_endian(values, 3) << 17, 0), digits=-1)


@column_type(TypeCode.DATETIME2)
def datetime2(column: Column) -> ColumnType:
    fraction = fraction_bytes(column.metadata)
    return _datetime(
        DATETIME2_BYTES + fraction, functools.partial(_packed_datetimes2, fraction=fraction), column.metadata
    )


@column_type(TypeCode.DATETIME)
def datetime_before_56(column: Column) -> ColumnType:
    digits = old_fraction_digits(column)
    if not digits:
        return _datetime(8, _packed_datetimes, 0)
    return _datetime(OLD_DATETIME_BYTES[digits], functools.partial(_old_datetimes, digits=digits), digits)


@column_type(TypeCode.TIMESTAMP2)
def timestamp2(column: Column) -> ColumnType:
    fraction = fraction_bytes(column.metadata)
    return _timestamp(4 + fraction, functools.partial(_timestamps2, fraction=fraction), column.metadata)


@column_type(TypeCode.TIMESTAMP)
def timestamp_before_56(column: Column) -> ColumnType:
    digits = old_fraction_digits(column)
    if not digits:
        return _timestamp(4, _timestamps, 0)
    return _timestamp(4 + fraction_bytes(digits), functools.partial(_old_timestamps, digits=digits), digits)


def _datetime(width: int, packed: Packed, digits: int) -> ColumnType:
    finish = functools.partial(_datetimes, packed=packed)
    found = ColumnType(
        width=width, arrow=pa.timestamp("us"), spark="timestamp_ntz", finish=finish, may_become_null=True
    )
    return with_zero_dates(found, packed, digits)


def _timestamp(width: int, finish: Any, digits: int) -> ColumnType:
    arrow = pa.timestamp("us", "UTC")
    found = ColumnType(width=width, arrow=arrow, spark="timestamp", finish=finish, may_become_null=True)
    return with_zero_dates(found, functools.partial(_packed_instants, finish=finish), digits)


def old_fraction_digits(column: Column) -> int:
    """Returns the number of fraction digits of a column in MariaDB's own formats (mysql56_temporal_format=OFF). The number comes from the
    declared type, because the table map does not have it.
    """
    return declared_digits(column.mysql_type)


@compiled
def days_from_civil(year: int, month: int, day: int) -> int:
    """Returns the days from 1970-01-01 to a Gregorian date. Returns NO_DATE for an invalid date, and for a year outside 1 to 9999. The
    computation counts years from March, so that the leap day is the last day of a year.
    """
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if year < 1 or year > 9999 or month < 1 or month > 12 or day < 1:
        return NO_DATE
    last = 31 - (month - 1) % 7 % 2 if month != 2 else 28 + leap
    if day > last:
        return NO_DATE
    year -= month <= 2
    shifted = (month + 9) % 12
    return year * 365 + year // 4 - year // 100 + year // 400 + (153 * shifted + 2) // 5 + day - 1 - 719468


@compiled
def micros_of(year: int, month: int, day: int, hour: int, minute: int, second: int) -> int:
    days = days_from_civil(year, month, day)
    if days == NO_DATE or hour > 23 or minute > 59 or second > 59:
        return NO_DATE
    return (days * 86400 + hour * 3600 + minute * 60 + second) * 1_000_000


@compiled
def days_of_packed(packed: Int64s, out: Int64s) -> None:
    """Converts dates (year << 9 | month << 5 | day) to days since 1970-01-01. An invalid date becomes NO_DATE."""
    for row in range(packed.shape[0]):
        value = packed[row]
        out[row] = days_from_civil(value >> 9, value >> 5 & 15, value & 31)


@compiled
def micros_of_packed(packed: Int64s, out: Int64s) -> None:
    """Converts packed dates and times, (year * 13 + month) << 22 | day << 17 | hour << 12 | minute << 6 | second, to microseconds since
    1970. An invalid date or time becomes NO_DATE.
    """
    for row in range(packed.shape[0]):
        value = packed[row]
        months = value >> 22
        hour, minute, second = value >> 12 & 31, value >> 6 & 63, value & 63
        out[row] = micros_of(months // 13, months % 13, value >> 17 & 31, hour, minute, second)


def big_endian_parts(values: Values, whole_bytes: int, fraction: int) -> tuple[Int64s, Int64s]:
    """Returns (whole number, microseconds) of values that consist of an unsigned big-endian number and `fraction` bytes of a second's
    fraction.
    """
    wide = np.empty(values.count, np.int64)
    rows_gather.big_endian_integers(values.buffer, values.starts, whole_bytes + fraction, wide)
    whole = wide >> (8 * fraction) & ((1 << 8 * whole_bytes) - 1)
    return whole, (wide & ((1 << 8 * fraction) - 1)) * MICROS_OF_FRACTION[fraction]


def _little_endian(values: Values, size: int) -> Int64s:
    wide = np.empty(values.count, np.int64)
    rows_gather.little_endian_integers(values.buffer, values.starts, size, False, wide)
    return wide


def _dates(values: Values) -> AnyArray:
    days = np.empty(values.count, np.int64)
    days_of_packed(_little_endian(values, 3), days)
    valid = days != NO_DATE
    return pa.Array.from_buffers(pa.date32(), values.count, [validity_of(valid), buffer_of(days.astype(np.int32))])


def _datetimes(values: Values, packed: Packed) -> AnyArray:
    whole, fraction_micros = packed(values)
    micros = np.empty(values.count, np.int64)
    micros_of_packed(whole, micros)
    return _instants(micros, fraction_micros, pa.timestamp("us"))


def _packed_datetimes2(values: Values, fraction: int) -> tuple[Int64s, Int64s]:
    packed, fraction_micros = big_endian_parts(values, DATETIME2_BYTES, fraction)
    return packed - DATETIME2_ZERO, fraction_micros


def _packed_datetimes(values: Values) -> tuple[Int64s, int]:
    """Converts DATETIMEs of the format before MySQL 5.6, a decimal number YYYYMMDDhhmmss, to the packed layout of DATETIME2. The second
    result, the microseconds, is always 0.
    """
    digits = _little_endian(values, 8)
    day, time = digits // 1_000_000, digits % 1_000_000
    months = day // 10000 * 13 + day // 100 % 100
    return months << 22 | day % 100 << 17 | time // 10000 << 12 | time // 100 % 100 << 6 | time % 100, 0


def _old_datetimes(values: Values, digits: int) -> tuple[Int64s, Int64s]:
    """Converts DATETIMEs of MariaDB's own format, with `digits` fraction digits, to the packed layout of DATETIME2. A value is one
    big-endian number, whose parts have the radixes 13 for the month, 32 for the day, 24, 60 and 60 for the time, and 10 ** `digits` for the
    fraction.
    """
    number = np.empty(values.count, np.int64)
    rows_gather.big_endian_integers(values.buffer, values.starts, OLD_DATETIME_BYTES[digits], number)
    rest, fraction = np.divmod(number, 10**digits)
    rest, second = np.divmod(rest, 60)
    rest, minute = np.divmod(rest, 60)
    rest, hour = np.divmod(rest, 24)
    months, day = np.divmod(rest, 32)
    return months << 22 | day << 17 | hour << 12 | minute << 6 | second, fraction * 10 ** (6 - digits)


def _timestamps2(values: Values, fraction: int) -> AnyArray:
    seconds, fraction_micros = big_endian_parts(values, 4, fraction)
    return _instants(np.where(seconds == 0, NO_DATE, seconds * 1_000_000), fraction_micros, pa.timestamp("us", "UTC"))


def _timestamps(values: Values) -> AnyArray:
    seconds = _little_endian(values, 4)
    return _instants(np.where(seconds == 0, NO_DATE, seconds * 1_000_000), 0, pa.timestamp("us", "UTC"))


def _old_timestamps(values: Values, digits: int) -> AnyArray:
    """Decodes TIMESTAMPs of MariaDB's own format: the seconds since 1970 in four bytes, and then the fraction as a number of `digits`
    decimal digits. Both numbers are big-endian. Zero seconds are the zero timestamp, which becomes NULL.
    """
    size = fraction_bytes(digits)
    wide = np.empty(values.count, np.int64)
    rows_gather.big_endian_integers(values.buffer, values.starts, 4 + size, wide)
    seconds, fraction = wide >> 8 * size, wide & ((1 << 8 * size) - 1)
    micros = np.where(seconds == 0, NO_DATE, seconds * 1_000_000)
    return _instants(micros, fraction * 10 ** (6 - digits), pa.timestamp("us", "UTC"))


def _packed_instants(values: Values, finish: Any) -> tuple[Int64s, Int64s]:
    """Decodes TIMESTAMPs with the function `finish`, and converts the instants to UTC dates and times in the packed layout of DATETIME2.
    The zero timestamp becomes the number zero.
    """
    array = finish(values)
    moments = np.asarray(array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False), np.int64)
    days, micros = np.divmod(moments, 86_400_000_000)
    dates = days.astype("datetime64[D]")
    year = dates.astype("datetime64[Y]").astype(np.int64) + 1970
    month = dates.astype("datetime64[M]").astype(np.int64) % 12 + 1
    day = (dates - dates.astype("datetime64[M]")).astype(np.int64) + 1
    second, fraction = np.divmod(micros, 1_000_000)
    packed = (year * 13 + month) << 22 | day << 17 | second // 3600 << 12 | second // 60 % 60 << 6 | second % 60
    return np.where(moments == 0, 0, packed), fraction


def _instants(micros: Int64s, fraction_micros: Int64s | int, arrow: pa.DataType) -> AnyArray:
    """Returns the instants `micros` + `fraction_micros` as an Arrow array, with NULL where `micros` is NO_DATE. A NULL of the source is
    NO_DATE too: the gather kernels read a NULL as the number zero, and the callers convert zero to NO_DATE.
    """
    valid = micros != NO_DATE
    data = np.where(valid, micros + fraction_micros, 0)
    return pa.Array.from_buffers(arrow, len(micros), [validity_of(valid), buffer_of(data)])
