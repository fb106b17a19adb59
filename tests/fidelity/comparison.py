"""Converts a staged value, and the result of SELECT, to the same form. Every test that compares with a server uses it."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

BYTE_STRINGS = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "geometry", "point", "linestring", "polygon",
                "multipoint", "multilinestring", "multipolygon", "geometrycollection", "vector")  # fmt: skip
TEMPORAL = ("date", "datetime", "timestamp")


def base_of(declared: str) -> str:
    return declared.partition("(")[0].partition(" ")[0]


def fraction_digits(declared: str) -> int:
    return int(declared.partition("(")[2][:1] or 0) if base_of(declared) in {"datetime", "timestamp"} else 0


def printed(value: Any, declared: str) -> Any:
    """Returns a staged value in the form in which the server prints it. Byte strings become bytes, floats stay floats, and NULL becomes
    None.
    """
    digits = fraction_digits(declared)
    match value:
        case bool():
            return str(int(value))
        case dt.datetime():
            fraction = f".{value.microsecond:06}"[: digits + 1] if digits else ""
            return f"{value.year:04}-{value:%m-%d %H:%M:%S}{fraction}"
        case dt.date():
            return f"{value.year:04}-{value:%m-%d}"
        case decimal.Decimal():
            return f"{value:f}"
        case int():
            return str(value)
        case _:
            return value


def expected(raw: bytes | None, declared: str, zero_dates: str = "null") -> Any:
    """Returns what SELECT printed, in the form in which `printed` returns a staged value. `raw` are the bytes that the client received."""
    base = base_of(declared)
    if raw is None or base in BYTE_STRINGS:
        return raw
    if base in {"float", "double"}:
        return float(raw)
    shown = raw.decode()
    if base in TEMPORAL and zero_dates == "null" and not is_day(shown):
        return None
    return str(int(shown)) if base == "year" else shown


def is_day(shown: str) -> bool:
    """Returns whether a printed date or time exists in the calendar. It does not if the year, month or day is zero, or if it is, for
    example, the 30th of February.
    """
    try:
        dt.date.fromisoformat(shown[:10])
    except ValueError:
        return False
    return True
