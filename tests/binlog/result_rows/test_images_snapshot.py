"""Tests that values of a query result are decoded correctly, for every precision and fraction. The expected values are decimals and dates
of Python.
"""

from __future__ import annotations

import datetime as dt
import decimal
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.cdc_engine.binlog.column_types import ValueRefusedError, Values
from sluice.cdc_engine.binlog.result_rows.result_types import result_type
from sluice.cdc_engine.binlog.type_codes import TypeCode
from sluice.cdc_engine.contracts import Column

PRECISION_MAX, SCALE_MAX = 65, 30
FIRST_INSTANT, LAST_INSTANT = dt.datetime.fromisoformat("1970-01-01 00:00:01"), dt.datetime.fromisoformat("2106-02-07")


def finished(column: Column, sent: Sequence[bytes | None], zero_dates: str = "null") -> list[Any]:
    """Returns the values as the decoder of the column's type converts them. Other bytes separate the values in the buffer."""
    buffer = bytearray(b"\xff")
    starts, sizes = [], []
    for value in sent:
        starts.append(-1 if value is None else len(buffer))
        sizes.append(len(value or b""))
        buffer += (value or b"") + b"\xff"
    located = Values(
        np.frombuffer(bytes(buffer), np.uint8).copy(), np.array(starts, np.int64), np.array(sizes, np.int64)
    )
    return result_type(column, "", zero_dates).finish(located).to_pylist()


def column_of(code: TypeCode, metadata: int, declared: str) -> Column:
    return Column(name="c", type_code=code, metadata=metadata, mysql_type=declared)


def moment(value: dt.datetime | dt.date) -> bytes:
    """Returns the value in the shortest form of the binary protocol, as the server sends it."""
    date = struct.pack("<HBB", value.year, value.month, value.day)
    if not isinstance(value, dt.datetime):
        return date
    if value.microsecond:
        return date + struct.pack("<BBBI", value.hour, value.minute, value.second, value.microsecond)
    return date + (struct.pack("<BBB", value.hour, value.minute, value.second) if value.time() != dt.time() else b"")


@st.composite
def decimals(draw: st.DrawFn) -> tuple[int, int, list[str | None]]:
    scale = draw(st.integers(0, SCALE_MAX))
    precision = draw(st.integers(max(1, scale), PRECISION_MAX))

    def text(number: int) -> str:
        digits = str(abs(number)).rjust(scale + 1, "0")
        whole, fraction = digits[: len(digits) - scale], digits[len(digits) - scale :]
        return f"{'-' * (number < 0)}{whole}{'.' * bool(scale)}{fraction}"

    limit = 10**precision - 1
    return precision, scale, draw(st.lists(st.none() | st.integers(-limit, limit).map(text), min_size=1, max_size=8))


@given(decimals(), st.integers(0, 3))
def test_decimals_of_every_precision_snapshot(made: tuple[int, int, list[str | None]], zeros: int) -> None:
    """`zeros`: leading zeros, as ZEROFILL prints them."""
    precision, scale, texts = made
    column = column_of(TypeCode.NEWDECIMAL, precision << 8 | scale, f"decimal({precision},{scale})")
    sent = [None if text is None else (text if text[0] == "-" else "0" * zeros + text).encode() for text in texts]
    found = finished(column, sent)
    assert [None if each is None else f"{decimal.Decimal(each):f}" for each in found] == texts


@pytest.mark.parametrize(
    "text", [b"", b"-", b"1", b"1.2", b"1.2345", b"a.123", b"12345.123", b".123x", b"1,123", b"-.", b"1.1 2"]
)
def test_what_is_no_decimal_of_the_column_is_refused_snapshot(text: bytes) -> None:
    with pytest.raises(ValueRefusedError):
        finished(column_of(TypeCode.NEWDECIMAL, 7 << 8 | 3, "decimal(7,3)"), [b"1.000", text])


@given(st.lists(st.none() | st.datetimes(), min_size=1, max_size=8), st.integers(0, 6))
def test_moments_of_every_fraction_snapshot(moments: list[dt.datetime | None], digits: int) -> None:
    unit = 10 ** (6 - digits)
    stored = [each and each.replace(microsecond=each.microsecond // unit * unit) for each in moments]
    sent = [None if each is None else moment(each) for each in stored]
    assert finished(column_of(TypeCode.DATETIME2, digits, f"datetime({digits})"), sent) == stored
    assert finished(
        column_of(TypeCode.DATE, 0, "date"), [None if each is None else moment(each.date()) for each in stored]
    ) == [each and each.date() for each in stored]


@given(st.lists(st.datetimes(FIRST_INSTANT, LAST_INSTANT), max_size=8), st.integers(0, 6))
def test_instants_are_utc_snapshot(moments: list[dt.datetime], digits: int) -> None:
    unit = 10 ** (6 - digits)
    stored = [each.replace(microsecond=each.microsecond // unit * unit) for each in moments]
    column = column_of(TypeCode.TIMESTAMP2, digits, f"timestamp({digits})")
    found = finished(column, [*map(moment, stored), b"", None])
    assert found == [*(each.replace(tzinfo=dt.UTC) for each in stored), None, None]
    printed = finished(column, [b""], "text")
    assert printed == [f"0000-00-00 00:00:00{'.' * bool(digits)}{'0' * digits}"]


def test_an_instant_that_cannot_be_is_refused_snapshot() -> None:
    """The value is before 1970. A server never sends such a value to a session with time zone UTC."""
    with pytest.raises(ValueRefusedError):
        finished(column_of(TypeCode.TIMESTAMP2, 0, "timestamp"), [moment(FIRST_INSTANT - dt.timedelta(days=1))])


@given(st.lists(st.integers(-3_020_399_999_999, 3_020_399_999_999), min_size=1, max_size=8), st.integers(0, 6))
def test_times_of_every_fraction_snapshot(counts: list[int], digits: int) -> None:
    """Microseconds up to 838:59:59.999999 on either side."""
    unit = 10 ** (6 - digits)
    sent, texts = [], []
    for count in counts:
        seconds, micros = divmod(abs(count) // unit * unit, 1_000_000)
        hours, rest = divmod(seconds, 3600)
        negative = count < 0 and bool(seconds or micros)
        packed = struct.pack("<BIBBBI", negative, hours // 24, hours % 24, rest // 60, rest % 60, micros)
        sent.append(packed if micros else packed[:8] if seconds else b"")
        fraction = f".{micros:06}"[: digits + 1] if digits else ""
        texts.append(f"{'-' * negative}{hours:02}:{rest // 60:02}:{rest % 60:02}{fraction}")
    assert finished(column_of(TypeCode.TIME2, digits, f"time({digits})"), sent) == texts


def test_years_snapshot() -> None:
    sent = [struct.pack("<H", year) for year in (0, 1901, 2155)]
    assert finished(column_of(TypeCode.YEAR, 0, "year"), sent) == [0, 1901, 2155]
