"""Converts the text values of Canal's entries to Python values and Arrow columns, by the declared type of the column. A value that Python
cannot represent, for example the date 2020-00-00 or 2021-02-31, stays text. In an Arrow column, such a date or time is NULL.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import functools
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

DECLARED = re.compile(r"\s*(\w+(?: precision)?)\s*(?:\((.*)\))?", re.DOTALL)
LABEL = re.compile(r"'((?:[^']|'')*)'")
DURATION = re.compile(r"(-?)(\d+):(\d\d):(\d\d)(?:\.(\d{1,6}))?")
NO_DAY = r"^0000|-00"
DAY = re.compile(r"\d{4}-\d\d-\d\d")
DIGITS_128 = 38
INTEGER_BITS = {"tinyint": 8, "smallint": 16, "mediumint": 32, "int": 32, "integer": 32, "bigint": 64}
BYTES = {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "geometry", "point", "linestring"} | {
    "polygon", "multipoint", "multilinestring", "multipolygon", "geometrycollection", "geomcollection", "vector"
}  # fmt: skip
MOMENTS = {"datetime", "timestamp"}
LABELS = {"enum", "set"}


@dataclasses.dataclass(frozen=True)
class ClientColumnType:
    """The type of a column. `name` is in lower case. `numbers` has the precision and the scale, or the length. `labels` are the values
    of an enum or set.
    """

    name: str
    numbers: tuple[int, ...] = ()
    unsigned: bool = False
    labels: tuple[str, ...] = ()

    def value(self, text: str) -> Any:
        """Converts a text to the Python value. Returns the text itself if Python cannot represent it."""
        try:
            return _reader(self)(text)
        except (ValueError, ArithmeticError, LookupError):
            return text

    def arrow(self) -> pa.DataType:
        """Returns the Arrow type, which is string for an unknown type."""
        return _arrow(self)

    def column(self, texts: list[str | None]) -> pa.Array[Any]:
        """Converts texts to an Arrow column. Dates and datetimes whose day does not exist become NULL, and so do texts in a TIME column
        that are not times. Raises pyarrow.ArrowInvalid if any other text is not a value of the type.
        """
        return _column(self, texts)


@functools.lru_cache(maxsize=10_000)
def column_type(declared: str) -> ClientColumnType:
    """Parses a column type as it is written in DDL: `int(10) unsigned`, `decimal(10,2)`, `enum('a','b')`, … A text that cannot be parsed
    gives a type with an empty name.
    """
    found = DECLARED.match(declared)
    if found is None:
        return ClientColumnType("")
    name, inside = found[1].lower(), found[2] or ""
    if name in LABELS:
        return ClientColumnType(name, labels=tuple(label.replace("''", "'") for label in LABEL.findall(inside)))
    numbers = tuple(int(part) for part in inside.split(",") if part.strip().isdigit())
    rest = declared.lower()
    return ClientColumnType(name, numbers, "unsigned" in rest or "zerofill" in rest)


def _label(kind: ClientColumnType, text: str) -> str:
    number = int(text)
    return kind.labels[number - 1] if number else ""


def _labels(kind: ClientColumnType, text: str) -> str:
    bits = int(text)
    if bits >> len(kind.labels):
        raise ValueError(text)
    return ",".join(label for at, label in enumerate(kind.labels) if bits >> at & 1)


def _duration(text: str) -> dt.timedelta:
    found = DURATION.fullmatch(text)
    if found is None:
        raise ValueError(text)
    hours, minutes, seconds, micro = int(found[2]), int(found[3]), int(found[4]), (found[5] or "").ljust(6, "0")
    value = dt.timedelta(hours=hours, minutes=minutes, seconds=seconds, microseconds=int(micro))
    return -value if found[1] else value


@functools.lru_cache(maxsize=10_000)
def _reader(kind: ClientColumnType) -> Callable[[str], Any]:
    if kind.name in INTEGER_BITS or kind.name in {"bit", "year"}:
        return int
    if kind.name in {"float", "double", "double precision", "real"}:
        return float
    if kind.name in {"enum", "set"} and kind.labels:
        return functools.partial(_label if kind.name == "enum" else _labels, kind)
    if kind.name in BYTES:
        return lambda text: text.encode("latin-1")
    plain: dict[str, Callable[[str], Any]] = {
        "decimal": decimal.Decimal,
        "numeric": decimal.Decimal,
        "date": dt.date.fromisoformat,
        "time": _duration,
        **dict.fromkeys(MOMENTS, dt.datetime.fromisoformat),
    }
    return plain.get(kind.name, str)


@functools.lru_cache(maxsize=10_000)
def _arrow(kind: ClientColumnType) -> pa.DataType:
    import pyarrow as pa  # noqa: PLC0415  only Arrow columns need pyarrow

    if kind.name in INTEGER_BITS:
        made: pa.DataType = getattr(pa, f"{'u' if kind.unsigned else ''}int{INTEGER_BITS[kind.name]}")()
        return made
    if kind.name in {"decimal", "numeric"}:
        precision, scale = (*kind.numbers, 10, 0)[:2] if len(kind.numbers) != 1 else (kind.numbers[0], 0)
        return pa.decimal128(precision, scale) if precision <= DIGITS_128 else pa.decimal256(precision, scale)
    if kind.name in BYTES:
        return pa.binary()
    plain: dict[str, pa.DataType] = {
        "bit": pa.uint64(),
        "year": pa.int16(),
        "float": pa.float32(),
        "date": pa.date32(),
        "time": pa.duration("us"),
        **dict.fromkeys(("double", "double precision", "real"), pa.float64()),
        **dict.fromkeys(MOMENTS, pa.timestamp("us")),
    }
    return plain.get(kind.name, pa.string())


def _column(kind: ClientColumnType, texts: list[str | None]) -> pa.Array[Any]:
    import pyarrow as pa  # noqa: PLC0415  as above
    import pyarrow.compute as pc  # noqa: PLC0415

    if kind.name in BYTES or kind.name == "time" or kind.labels:
        values = [None if text is None else kind.value(text) for text in texts]
        if kind.name == "time":
            values = [None if isinstance(value, str) else value for value in values]
        return pa.array(values, _arrow(kind))
    column = pa.array(texts, pa.string())
    if kind.name == "date" or kind.name in MOMENTS:
        column = pc.if_else(pc.match_substring_regex(column, NO_DAY), None, column)
        try:
            made: pa.Array[Any] = column.cast(_arrow(kind))
            return made
        # Arrow refused a value. With the SQL mode ALLOW_INVALID_DATES, a date may have a day that does not exist, such as 2021-02-31. Such
        # dates become NULL.
        except pa.ArrowInvalid:
            column = pa.array([None if _no_such_day(kind, text) else text for text in column.to_pylist()], pa.string())
    return column.cast(_arrow(kind))


def _no_such_day(kind: ClientColumnType, text: str | None) -> bool:
    """Returns whether a text has the form of a date, but the day does not exist."""
    return text is not None and DAY.match(text) is not None and isinstance(kind.value(text), str)
