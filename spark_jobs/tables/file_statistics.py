"""Computes the statistics of a data file for a Delta log from the file's Parquet footer. Reads no rows. `snapshot.whole_files` and
`small.append` call this module.

Format of the values: https://github.com/delta-io/delta/blob/master/PROTOCOL.md#per-file-statistics. Strings are cut and timestamps are
rounded, so that a minimum is never too high and a maximum never too low. A bound that cannot be represented is omitted, so readers cannot
skip the file. deltalake's `to_pyarrow_dataset` has a defect: it skips a file that has values but no bounds for a column, if other files
have bounds for this column. So every type for which deltalake writes bounds gets bounds here too.
"""

from __future__ import annotations

import datetime as dt
import json
import struct
from collections.abc import Sequence
from typing import Any

import pyarrow.parquet as pq

from sluice.batch_manifest.values import LakeColumn

TEXT_CHARS_MAX = 32  # Delta cuts the bounds of strings to this length.
LAST_CHARACTER = "\U0010ffff"
# A minimum and a maximum that are valid for all strings. The maximum repeats U+10FFFF, a noncharacter that texts do not contain.
ANY_TEXT = '""', f'"{LAST_CHARACTER * TEXT_CHARS_MAX}"'
MILLIS = 1000  # microseconds per millisecond
EPOCH_DAY = dt.date(1970, 1, 1).toordinal()
EPOCH, LATEST = dt.datetime(1970, 1, 1), dt.datetime.max  # noqa: DTZ001,DTZ901  without a zone
INTEGERS = frozenset({"tinyint", "smallint", "int", "bigint"})
FLOATS = {"float": "<f", "double": "<d"}


def statistics(footer: pq.FileMetaData, columns: Sequence[LakeColumn], indexed: int) -> str:
    """Returns the statistics as JSON: the number of rows, and for each of the first `indexed` columns of the table the number of NULLs,
    the minimum and the maximum.
    """
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    indices = {footer.schema.column(number).path: number for number in range(len(footer.schema))}
    lowest, highest, nulls = dict[str, str](), dict[str, str](), dict[str, str]()
    for column in columns[:indexed]:
        if column.name not in indices:
            continue
        found: list[Any] = [group.column(indices[column.name]).statistics for group in groups]
        if any(each is None or not each.has_null_count for each in found):
            continue
        nulls[column.name] = str(sum(each.null_count for each in found))
        bounded = [each for each in found if each.num_values]
        if bounded:
            low, high = _bounds(column.type, bounded)
            if low is not None:
                lowest[column.name] = low
            if high is not None:
                highest[column.name] = high
    fields = {"minValues": lowest, "maxValues": highest, "nullCount": nulls}
    parts = [f'"numRecords":{footer.num_rows}', *(f'"{name}":{_object(values)}' for name, values in fields.items())]
    return f"{{{','.join([*parts, _TIGHT])}}}"


_TIGHT = '"tightBounds":true'


def _object(values: dict[str, str]) -> str:
    return "{" + ",".join(f"{json.dumps(name)}:{value}" for name, value in values.items()) + "}"


def _bounds(type_name: str, found: Sequence[Any]) -> tuple[str | None, str | None]:
    """Returns the minimum and the maximum as JSON. A bound that is unknown is None. Strings with unknown bounds get ANY_TEXT, which is
    valid for all strings.
    """
    if not all(each.has_min_max for each in found):  # The footer has no bounds for strings longer than 4 KiB.
        return ANY_TEXT if type_name == "string" else (None, None)
    if type_name == "string":
        return _least_text(min(each.min for each in found)), _greatest_text(max(each.max for each in found))
    numbers = [(_number(type_name, each.min_raw), _number(type_name, each.max_raw)) for each in found]
    low, high = [low for low, _ in numbers if low is not None], [high for _, high in numbers if high is not None]
    if len(low) < len(found) or len(high) < len(found):
        return None, None
    return _written(type_name, min(low), up=False), _written(type_name, max(high), up=True)


def _number(type_name: str, raw: Any) -> Any:
    """Converts a bound of the footer to a number that can be compared. Returns None if this type or value gets no bounds."""
    if type_name.startswith("decimal("):
        return int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else int(raw)
    if type_name in FLOATS:
        value = struct.unpack(FLOATS[type_name], raw)[0] if isinstance(raw, bytes) else float(raw)
        return value if value - value == 0 else None  # JSON can represent neither infinities nor NaN.
    return int(raw) if type_name in INTEGERS | {"boolean", "date", "timestamp", "timestamp_ntz"} else None


def _written(type_name: str, value: Any, *, up: bool) -> str | None:
    if type_name.startswith("decimal("):
        return _decimal(value, int(type_name.rstrip(") ").rpartition(",")[2]))
    if type_name == "date":
        return _day(value)
    if type_name.startswith("timestamp"):
        return _instant(value, up=up, zone="Z" if type_name == "timestamp" else "")
    return json.dumps(bool(value)) if type_name == "boolean" else repr(value)


def _decimal(unscaled: int, scale: int) -> str:
    digits = f"{abs(unscaled):0{scale + 1}d}"
    whole, part = (digits[:-scale], digits[-scale:]) if scale else (digits, "")
    return f"{'-' if unscaled < 0 else ''}{whole}{'.' if part else ''}{part}"


def _day(days: int) -> str | None:
    try:
        return f'"{dt.date.fromordinal(EPOCH_DAY + days).isoformat()}"'
    except (ValueError, OverflowError):  # Python has no dates in the year 0, which MySQL has.
        return None


def _instant(micros: int, *, up: bool, zone: str) -> str | None:
    """Returns a timestamp rounded to milliseconds, as Delta stores it. A maximum is rounded up (`up`), and a minimum is rounded down. A
    timestamp in the last millisecond of the year 9999, which many tables use for "forever", is not rounded up.
    """
    try:
        at = EPOCH + dt.timedelta(microseconds=micros)
    except OverflowError:
        return None
    rest = at.microsecond % MILLIS
    if rest and up and at <= LATEST - dt.timedelta(microseconds=MILLIS):
        at += dt.timedelta(microseconds=MILLIS - rest)
    elif not up:
        at -= dt.timedelta(microseconds=rest)
    return f'"{at.isoformat(timespec="microseconds" if at.microsecond % MILLIS else "milliseconds")}{zone}"'


def _least_text(value: str) -> str:
    return json.dumps(value[:TEXT_CHARS_MAX], ensure_ascii=False)


def _greatest_text(value: str) -> str:
    """Returns, as JSON, an upper bound of `value` for the statistics, which has at most TEXT_CHARS_MAX characters of `value`. If `value` is
    longer, LAST_CHARACTER (the highest character) follows these characters. If the rest of `value` begins with n times LAST_CHARACTER, the
    result has LAST_CHARACTER n + 1 times.
    """
    if len(value) <= TEXT_CHARS_MAX:
        return json.dumps(value, ensure_ascii=False)
    rest = value[TEXT_CHARS_MAX:]
    repeated = len(rest) - len(rest.lstrip(LAST_CHARACTER))
    return json.dumps(value[:TEXT_CHARS_MAX] + LAST_CHARACTER * (repeated + 1), ensure_ascii=False)
