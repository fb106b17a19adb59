"""One value, two sides: what MySQL's text protocol sends and what Delta holds, brought to the same Python value; used by compare.

The Delta side follows docs/architecture.md (types): unsigned widened, TIME as text, ENUM and SET as labels, zero dates as null. Nothing is
rounded on the way: a FLOAT is compared as the 32-bit number it is, everything else exactly.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

MICROSECONDS = 1_000_000
_TIME = re.compile(r"(-?)(\d+):(\d\d):(\d\d)(?:\.(\d{1,6}))?")
_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001  arithmetic on wall-clock times
_EPOCH_UTC = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclasses.dataclass(frozen=True)
class ColumnKind:
    """How one kind of column is read. `select` wraps the column where its text form would lose digits."""

    from_mysql: Callable[[Any], Any]
    from_delta: Callable[[Any], Any]
    select: str = "{}"


def _same(value: Any) -> Any:
    return value


def single(value: float) -> float:
    """The nearest 32-bit float, as a Python float."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def bits(value: Any) -> int:
    """BIT(n): bytes from MySQL; boolean, integer or decimal from Delta."""
    return int.from_bytes(value, "big") if isinstance(value, bytes) else int(value)


def duration(value: str) -> int:
    """TIME as signed microseconds, from `[-]HHH:MM:SS[.ffffff]`."""
    found = _TIME.fullmatch(value)
    if not found:
        raise ValueError(f"{value!r} is not a TIME")
    sign, hours, minutes, seconds, fraction = found.groups()
    whole = (int(hours) * 60 + int(minutes)) * 60 + int(seconds)
    return (-1 if sign else 1) * (whole * MICROSECONDS + int((fraction or "").ljust(6, "0")))


def moment(value: str) -> int | None:
    """DATETIME or TIMESTAMP text as microseconds since 1970; zero and partial dates are null."""
    if re.match(r"\d{4}-(00-|\d\d-00)", value):
        return None
    return _microseconds(dt.datetime.fromisoformat(value) - _EPOCH)


def instant(value: dt.datetime) -> int:
    """The same of a Python datetime, with a zone or without."""
    return _microseconds(value - (_EPOCH_UTC if value.tzinfo else _EPOCH))


def day(value: str) -> dt.date | None:
    """DATE text; zero and partial dates are null."""
    return None if re.match(r"\d{4}-(00-|\d\d-00)", value) else dt.date.fromisoformat(value)


def _microseconds(delta: dt.timedelta) -> int:
    return (delta.days * 86_400 + delta.seconds) * MICROSECONDS + delta.microseconds


_INTEGER = ColumnKind(int, int)
_DECIMAL = ColumnKind(Decimal, Decimal)
_TEXT = ColumnKind(_same, _same)
_BYTES = ColumnKind(bytes, bytes)
_MOMENT = ColumnKind(moment, instant)

# by information_schema.columns.data_type
KINDS: dict[str, ColumnKind] = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint", "year"), _INTEGER),
    "decimal": _DECIMAL,
    "float": ColumnKind(lambda text: single(float(text)), single, "{} + 0e0"),  # its text has six digits only
    "double": ColumnKind(float, float),
    **dict.fromkeys(("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set", "json"), _TEXT),
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), _BYTES),
    "bit": ColumnKind(bits, bits),
    "date": ColumnKind(day, _same),
    "datetime": _MOMENT,
    "timestamp": _MOMENT,
    "time": ColumnKind(duration, duration),
}


def kind_of(data_type: str) -> ColumnKind:
    """The kind of a MySQL data type; raises ValueError for a type that cannot be compared yet, so that none passes unseen."""
    if data_type not in KINDS:
        raise ValueError(
            f"columns of type {data_type} cannot be compared yet; add the type to console/demo/canonical.py"
        )
    return KINDS[data_type]
