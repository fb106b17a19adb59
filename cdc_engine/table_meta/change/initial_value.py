"""What rows that are already there hold in a column that ALTER TABLE … ADD gives them: the binlog has no row events for them.

A column that may be NULL and has no DEFAULT gives NULL; one with a constant DEFAULT gives that; a NOT NULL column without one gives the
type's own zero; CURRENT_TIMESTAMP gives the time of the statement. What cannot be said for certain (expressions, generated columns,
literals that the server would convert, times in a zone that is not known) is an error, and the table stops. Pure; used by `evolution`.
"""

from __future__ import annotations

import datetime as dt
import decimal
import re

from cdc_engine.contracts import NO_SESSION, StatementSession
from cdc_engine.table_meta.ddl.column_definition import ColumnDefinition
from cdc_engine.table_meta.ddl.declared_type import DeclaredType

_INTEGERS = {"tinyint", "smallint", "mediumint", "int", "bigint"}
_TEXTS = {"varchar", "tinytext", "text", "mediumtext", "longtext"}
_BLOBS = {"tinyblob", "blob", "mediumblob", "longblob"}
_FRACTIONS = {"time", "datetime", "timestamp"}  # printed with as many digits as the type has
_DAY = r"(?!0000|\d{4}-00|\d{4}-\d\d-00)\d{4}-\d\d-\d\d"
_LITERALS: tuple[tuple[set[str], re.Pattern[str]], ...] = (
    (_INTEGERS, re.compile(r"-?\d+")),
    ({"decimal"}, re.compile(r"-?\d+(?:\.\d+)?")),
    ({"float", "double"}, re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")),
    ({"date"}, re.compile(_DAY)),
    ({"datetime", "timestamp"}, re.compile(rf"{_DAY} \d\d:\d\d:\d\d")),
    ({"time"}, re.compile(r"-?\d{2,3}:[0-5]\d:[0-5]\d")),
    ({"year"}, re.compile(r"190[1-9]|19[1-9]\d|20\d\d|21[0-4]\d|215[0-5]")),
    ({"bit"}, re.compile(r"b'[01]+'")),
    ({"varbinary"}, re.compile(r"[\x20-\x7e]*")),
    ({"char", *_TEXTS}, re.compile(r".*", re.DOTALL)),
)
# NOT NULL without DEFAULT; zero dates are NULL in the lake, so they need no fill
_ZEROS = {
    **dict.fromkeys((*_INTEGERS, "decimal", "float", "double", "year", "bit"), "0"),
    **dict.fromkeys(("char", "varbinary", "set", *_TEXTS, *_BLOBS), ""),
    "time": "00:00:00",
}
_ZERO_DATES = {"date", "datetime", "timestamp"}
_OFFSET = re.compile(r"([+-])(\d\d):([0-5]\d)")
_UTC = {"UTC", "GMT"}
_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001  times here are in the zone that the reader of the code is told


_DECIMAL_DIGITS_MAX = 65
_BY_SERVER = {"timestamp"}  # without a DEFAULT it has one or none by a setting of the server


class InitialValueUnknownError(Exception):
    """The message says why."""


def initial_value(column: ColumnDefinition, session: StatementSession = NO_SESSION) -> str | None:
    """The value as MySQL would print it, a TIMESTAMP in UTC; None for NULL. `session`: what ran the statement.

    Raises InitialValueUnknownError where it cannot be said.
    """
    if column.generated:
        raise InitialValueUnknownError("it is a generated column")
    if column.auto_increment:
        raise InitialValueUnknownError("it is AUTO_INCREMENT")
    default = column.default
    if default is None:
        if column.type.base in _BY_SERVER and not column.says_null and not session.explicit_timestamps:
            raise InitialValueUnknownError("a TIMESTAMP without NULL and DEFAULT has them from the server's settings")
        return None if column.nullable else _zero(column.type)
    if default.now:
        return _now(column.type, session)
    if not default.constant or (default.bits and column.type.base != "bit"):
        raise InitialValueUnknownError("its DEFAULT is an expression, a function or a literal in another notation")
    return None if default.value is None else _literal(column.type, default.value, session)


def known_default(column: ColumnDefinition) -> tuple[str | None, ...]:
    """As `contracts.Column.default`: what a row gets whose INSERT leaves the column out, which is what rows already there would.

    However a number was written in the statement, it comes out in one way.
    """
    if column.type.base in _BY_SERVER:
        return ()
    try:
        value = initial_value(column)
    except InitialValueUnknownError:
        return ()
    return (None if value is None else _one_way(column.type, value),)


def _one_way(declared: DeclaredType, value: str) -> str:
    if declared.base in _INTEGERS:
        return str(int(value))
    if declared.base == "decimal":
        unit = decimal.Decimal(1).scaleb(-max(declared.scale, 0))
        digits = decimal.Context(prec=_DECIMAL_DIGITS_MAX, rounding=decimal.ROUND_HALF_UP)
        return format(decimal.Decimal(value).quantize(unit, context=digits), "f")
    return repr(float(value)) if declared.base in {"float", "double"} else value


def _zero(declared: DeclaredType) -> str | None:
    if declared.base in _ZERO_DATES:
        return None
    if declared.base == "enum":
        return declared.labels[0]
    if declared.base not in _ZEROS:
        raise InitialValueUnknownError(f"it is NOT NULL without a DEFAULT, and of type {declared.base}")
    return _ZEROS[declared.base] + _no_fraction(declared)


def _literal(declared: DeclaredType, value: str, session: StatementSession) -> str:
    if declared.base in {"enum", "set"}:
        return _label(declared, value)
    if not any(declared.base in bases and pattern.fullmatch(value) for bases, pattern in _LITERALS):
        raise InitialValueUnknownError(f"its DEFAULT would be converted to {declared.base}")
    if declared.base == "bit":
        return str(int(value[2:-1], 2))
    if declared.base == "timestamp":
        value = _in_utc(value, session)
    return (value.rstrip(" ") if declared.base == "char" else value) + _no_fraction(declared)


def _in_utc(literal: str, session: StatementSession) -> str:
    try:
        return str(dt.datetime.fromisoformat(literal) - _offset(session))
    except (ValueError, OverflowError) as error:
        raise InitialValueUnknownError(f"its DEFAULT {literal} is no time") from error


def _no_fraction(declared: DeclaredType) -> str:
    return "." + "0" * declared.length if declared.base in _FRACTIONS and declared.length > 0 else ""


def _now(declared: DeclaredType, session: StatementSession) -> str:
    """CURRENT_TIMESTAMP in a column of this type."""
    digits = max(declared.length, 0)
    if not session.started_us or (digits and not session.fraction):
        raise InitialValueUnknownError("its DEFAULT is a time that the binlog does not tell")
    if declared.base not in {"datetime", "timestamp"}:
        raise InitialValueUnknownError(f"its DEFAULT, a time, would be converted to {declared.base}")
    offset = _offset(session) if declared.base == "datetime" else dt.timedelta()
    seconds, microseconds = divmod(session.started_us, 1_000_000)
    now = _EPOCH + dt.timedelta(seconds=seconds) + offset
    return f"{now}.{microseconds:06d}"[: len(str(now)) + (1 + digits if digits else 0)]


def _offset(session: StatementSession) -> dt.timedelta:
    """Of the session's time zone from UTC, where it is one and the same at any time."""
    if session.time_zone in _UTC:
        return dt.timedelta()
    found = _OFFSET.fullmatch(session.time_zone)
    if not found:
        zone = session.time_zone or "not told"
        raise InitialValueUnknownError(f"its DEFAULT is a time in a zone whose offset is not known ({zone})")
    offset = dt.timedelta(hours=int(found[2]), minutes=int(found[3]))
    return -offset if found[1] == "-" else offset


def _label(declared: DeclaredType, value: str) -> str:
    chosen = [value] if declared.base == "enum" else [part for part in value.split(",") if part]
    places = [declared.labels.index(label) for label in chosen if label in declared.labels]
    if len(places) != len(chosen) or places != sorted(set(places)):
        raise InitialValueUnknownError("its DEFAULT is not spelt like its labels")
    return value
