"""Tests that the values in Canal's entries get the declared types of their columns, in Python and in Arrow."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from sluice.canal_client.column_types import column_type

CASES: list[tuple[str, str, Any, pa.DataType]] = [
    ("int(10) unsigned", "4294967295", 4294967295, pa.uint32()),
    ("tinyint", "-5", -5, pa.int8()),
    ("mediumint(8) zerofill", "5", 5, pa.uint32()),
    ("bigint unsigned", "18446744073709551615", 18446744073709551615, pa.uint64()),
    ("decimal(10,2)", "1.50", Decimal("1.50"), pa.decimal128(10, 2)),
    ("decimal(5)", "15", Decimal(15), pa.decimal128(5, 0)),
    ("decimal(65,30)", "1.5", Decimal("1.5"), pa.decimal256(65, 30)),
    ("float", "1.0E10", 1e10, pa.float32()),
    ("double", "1.0E-4", 1e-4, pa.float64()),
    ("bit(10)", "513", 513, pa.uint64()),
    ("year", "2001", 2001, pa.int16()),
    ("date", "2020-01-02", dt.date(2020, 1, 2), pa.date32()),
    (
        "datetime(3)",
        "2020-01-02 03:04:05.678",
        dt.datetime(2020, 1, 2, 3, 4, 5, 678000),  # noqa: DTZ001  as the source has it
        pa.timestamp("us"),
    ),
    ("time", "-838:59:59", -dt.timedelta(hours=838, minutes=59, seconds=59), pa.duration("us")),
    ("time(2)", "00:00:00.50", dt.timedelta(milliseconds=500), pa.duration("us")),
    ("enum('a','it''s')", "2", "it's", pa.string()),
    ("enum('a')", "0", "", pa.string()),
    ("set('x','y','z')", "5", "x,z", pa.string()),
    ("varchar(20)", "grün", "grün", pa.string()),
    ("varbinary(10)", "\x00ÿ", b"\x00\xff", pa.binary()),
    ("longblob", "æ\x88\x91", b"\xe6\x88\x91", pa.binary()),
    ("json", '{"a": 1}', '{"a": 1}', pa.string()),
    ("something new", "text", "text", pa.string()),
    ("", "text", "text", pa.string()),
]


@pytest.mark.parametrize(("declared", "text", "value", "kind"), CASES, ids=[case[0] for case in CASES])
def test_a_canal_text_is_a_value_of_its_declared_type(declared: str, text: str, value: Any, kind: pa.DataType) -> None:
    found = column_type(declared)
    assert found.value(text) == value
    column = found.column([text, None])
    assert (column.type, column.null_count) == (kind, 1)
    assert column[0].as_py() == value


@pytest.mark.parametrize("declared", ["date", "datetime", "timestamp(3)"])
def test_an_invalid_canal_date_is_its_text_in_python_and_null_in_arrow(declared: str) -> None:
    found = column_type(declared)
    for text in ("0000-00-00 00:00:00"[: 10 if declared == "date" else 19], "2020-00-00", "2021-02-31"):
        assert found.value(text) == text
        assert found.column([text]).null_count == 1


def test_a_canal_day_that_no_month_has_costs_no_other_value() -> None:
    found = column_type("date").column(["2021-02-31", "2021-03-01", None])
    assert found.to_pylist() == [None, dt.date(2021, 3, 1), None]
    with pytest.raises(pa.ArrowInvalid):
        column_type("date").column(["no day"])
