"""Applies the policies for invalid dates: zero dates, partial dates, days that no month has, and the year 0.

"null", the default, turns invalid dates into NULL. "error" raises ValueRefusedError. "text" turns the whole column into the text that
SELECT prints, so that the invalid dates are not lost. The text of a TIMESTAMP is in UTC. The column types of `dates` call this module, and
pass their values in the packed layout of DATETIME2.
"""
# ruff: noqa: PLR0917 - a kernel takes each array as an argument

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.cdc_engine.binlog.column_types.entry import AnyArray, ColumnType, ValueRefusedError, Values, buffer_of
from sluice.cdc_engine.binlog.compiled import Integer, compiled
from sluice.cdc_engine.contracts import Bytes, Int64s

# A function that returns two numbers for each row: the date and time in the packed layout of DATETIME2, and the microseconds. The layout is
# (year * 13 + month) << 22 | day << 17 | hour << 12 | minute << 6 | second.
Packed = Callable[[Values], tuple[Int64s, Int64s | int]]
DATE_ONLY = -1  # The value of `digits` for DATE, which has no time.
MOMENT_BYTES = len("9999-12-31 23:59:59.999999")


def declared_digits(mysql_type: str) -> int:
    """Returns the number of fraction digits of a declared type, for example 3 for `datetime(3)`."""
    found = re.search(r"\((\d)\)", mysql_type)
    return int(found[1]) if found else 0


def with_zero_dates(found: ColumnType, packed: Packed, digits: int) -> ColumnType:
    """Returns the type `found` with variants for the policies "error" and "text". `digits`: number of fraction digits, or DATE_ONLY.
    `packed`: returns the values in the packed layout of DATETIME2, or if `digits` is DATE_ONLY, in the layout (year << 9 | month << 5 |
    day) << 17.
    """
    strict = dataclasses.replace(found, finish=functools.partial(_refusing, finish=found.finish), may_become_null=False)
    if digits == DATE_ONLY:
        packed = functools.partial(_packed_days, days=packed)
    finish = functools.partial(_texts, packed=packed, digits=digits)
    text = ColumnType(width=found.width, arrow=pa.string(), spark="string", finish=finish)
    return dataclasses.replace(found, by_zero_dates={"error": strict, "text": text})


def _refusing(values: Values, finish: Callable[[Values], AnyArray]) -> AnyArray:
    array = finish(values)
    if array.null_count:
        refused = np.flatnonzero(np.asarray(array.is_null()) & (values.starts >= 0))
        if len(refused):
            raise ValueRefusedError(
                int(refused[0]),
                "is not a valid date (zero, partial or not in the calendar), and `zero_dates: error` refuses it",
            )
    return array


def _packed_days(values: Values, days: Packed) -> tuple[Int64s, int]:
    """Converts the dates that `days` returns, (year << 9 | month << 5 | day) << 17, to the packed layout of DATETIME2."""
    whole = days(values)[0] >> 17
    months = (whole >> 9) * 13 + (whole >> 5 & 15)
    return months << 22 | (whole & 31) << 17, 0


@compiled
def put_number(out: Bytes, at: Integer, value: Integer, digits: Integer) -> Integer:
    """Writes `value` in decimal with exactly `digits` digits. Returns the offset after the last digit."""
    for index in range(digits):
        out[at + digits - 1 - index] = 48 + value % 10
        value //= 10
    return at + digits


@compiled
def print_moments(starts: Int64s, packed: Int64s, micros: Int64s, digits: int, offsets: Any, out: Bytes) -> int:
    """Writes dates and times as `YYYY-MM-DD[ hh:mm:ss[.f]]` to `out`, back to back, and the ends of the texts to `offsets`. A row whose
    `starts` is negative gets an empty text. `packed`: dates and times in the layout of DATETIME2. `micros`: their microseconds. `digits`:
    number of fraction digits, or DATE_ONLY. Returns the number of bytes written.
    """
    used = 0
    offsets[0] = 0
    for row in range(starts.shape[0]):
        if starts[row] >= 0:
            value = packed[row]
            months = value >> 22
            used = put_number(out, used, months // 13, 4)
            out[used] = 45
            used = put_number(out, used + 1, months % 13, 2)
            out[used] = 45
            used = put_number(out, used + 1, value >> 17 & 31, 2)
            if digits >= 0:
                out[used] = 32
                used = put_number(out, used + 1, value >> 12 & 31, 2)
                out[used] = 58
                used = put_number(out, used + 1, value >> 6 & 63, 2)
                out[used] = 58
                used = put_number(out, used + 1, value & 63, 2)
            if digits > 0:
                out[used] = 46
                used = put_number(out, used + 1, micros[row] // 10 ** (6 - digits), digits)
        offsets[row + 1] = used
    return used


def _texts(values: Values, packed: Packed, digits: int) -> AnyArray:
    whole, micros = packed(values)
    offsets, out = np.empty(values.count + 1, np.int32), np.empty(values.count * MOMENT_BYTES, np.uint8)
    fractions = np.broadcast_to(np.asarray(micros, np.int64), whole.shape).copy()
    used = print_moments(values.starts, np.ascontiguousarray(whole), fractions, digits, offsets, out)
    return pa.Array.from_buffers(
        pa.string(), values.count, [values.validity(), buffer_of(offsets), buffer_of(out[:used])]
    )
