"""Converts a column's default value from text (`contracts.Column.default`) to the column's type. Called by `binlog.rows` and `staging`."""

from __future__ import annotations

import re

import pyarrow as pa

from sluice.cdc_engine.binlog.column_types.entry import ColumnType

_NO_DAY = re.compile(r"0000-|\d{4}-(?:00|\d\d-00)")  # Matches zero and partial dates, which Delta's types cannot store.


def text_value(text: str, each: ColumnType) -> str | None:
    """Returns a column's default value `text`, or None if it is a zero or partial date and the policy `zero_dates` is "null". Raises
    ValueError for such a date if the policy is "error".

    The text of a binary value is hexadecimal digits. The text of any other value is what SELECT prints.
    """
    if not (pa.types.is_date(each.arrow) or pa.types.is_timestamp(each.arrow)) or not _NO_DAY.match(text):
        return text
    if each.may_become_null:
        return None
    raise ValueError(f"{text} is not a valid date, and `zero_dates: error` refuses it")


def scalar_value(text: str, each: ColumnType) -> pa.Scalar[pa.DataType]:
    """Returns the default value `text` as an Arrow scalar of the column's type. Returns NULL for a zero or partial date if the policy
    `zero_dates` is "null". Raises ValueError if the text does not fit the type.
    """
    shown = text_value(text, each)
    if shown is None:
        return pa.scalar(None, each.arrow)
    if pa.types.is_binary(each.arrow):
        return pa.scalar(bytes.fromhex(shown), each.arrow)
    return pa.scalar(shown, pa.string()).cast(each.arrow)
