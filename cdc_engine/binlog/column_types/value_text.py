"""Converts a default value of a schema (`contracts.Column.default`) to its column's type. Called by `rows` and `staging`."""

from __future__ import annotations

import re

import pyarrow as pa

from sluice.cdc_engine.binlog.column_types.entry import ColumnType

_NO_DAY = re.compile(r"0000-|\d{4}-(?:00|\d\d-00)")  # The lake's types have no such dates.


def text_value(text: str, each: ColumnType) -> str | None:
    """Returns the text, or None if the lake has NULL for it. Raises ValueError if it is not a value of the type.

    Binary values are hexadecimal digits, all others what SELECT prints.
    """
    if not (pa.types.is_date(each.arrow) or pa.types.is_timestamp(each.arrow)) or not _NO_DAY.match(text):
        return text
    if each.null_beside_source:
        return None
    raise ValueError(f"{text} is not a valid date, and `zero_dates: error` refuses it")


def scalar_value(text: str, each: ColumnType) -> pa.Scalar[pa.DataType]:
    """Returns an Arrow scalar of the type. Raises ValueError if the text is not a value of it."""
    shown = text_value(text, each)
    if shown is None:
        return pa.scalar(None, each.arrow)
    if pa.types.is_binary(each.arrow):
        return pa.scalar(bytes.fromhex(shown), each.arrow)
    return pa.scalar(shown, pa.string()).cast(each.arrow)
