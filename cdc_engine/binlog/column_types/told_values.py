"""A value that no row image has but a schema tells (`contracts.Column.default`), as a type's own. Called by `rows` and `staging`."""

from __future__ import annotations

import re

import pyarrow as pa

from cdc_engine.binlog.column_types.entry import ColumnType

_NO_DAY = re.compile(r"0000-|\d{4}-(?:00|\d\d-00)")  # of no calendar that the lake has


def told_text(text: str, each: ColumnType) -> str | None:
    """The text, None where NULL stands for such a value. Raises ValueError where it is none that the type has.

    Of bytes it is their hexadecimal, of all others what SELECT prints.
    """
    if not (pa.types.is_date(each.arrow) or pa.types.is_timestamp(each.arrow)) or not _NO_DAY.match(text):
        return text
    if each.null_beside_source:
        return None
    raise ValueError(f"{text} is a date that is none, and zero_dates is error")


def told_scalar(text: str, each: ColumnType) -> pa.Scalar[pa.DataType]:
    """As an Arrow scalar of the type. Raises ValueError where it is no value of it."""
    shown = told_text(text, each)
    if shown is None:
        return pa.scalar(None, each.arrow)
    if pa.types.is_binary(each.arrow):
        return pa.scalar(bytes.fromhex(shown), each.arrow)
    return pa.scalar(shown, pa.string()).cast(each.arrow)
