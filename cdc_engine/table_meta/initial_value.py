"""What rows that are already there hold in a column that ALTER TABLE … ADD gives them: the binlog has no row events for them.

A column that may be NULL and has no DEFAULT gives NULL; one with a constant DEFAULT gives that; a NOT NULL column without one gives the
type's own zero. What cannot be said for certain (expressions, CURRENT_TIMESTAMP, generated columns, literals that the server would
convert) is an error, and the table stops. Pure; used by `evolution`.
"""

from __future__ import annotations

import decimal
import re

from cdc_engine.table_meta.column_definition import ColumnDefinition
from cdc_engine.table_meta.declared import DeclaredType

_INTEGERS = {"tinyint", "smallint", "mediumint", "int", "bigint"}
_TEXTS = {"char", "varchar"}
_LITERALS: tuple[tuple[set[str], re.Pattern[str]], ...] = (
    (_INTEGERS, re.compile(r"-?\d+")),
    ({"decimal"}, re.compile(r"-?\d+(?:\.\d+)?")),
    ({"float", "double"}, re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")),
    ({"date"}, re.compile(r"(?!0000|\d{4}-00|\d{4}-\d\d-00)\d{4}-\d\d-\d\d")),
    ({"datetime"}, re.compile(r"(?!0000|\d{4}-00|\d{4}-\d\d-00)\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")),
    (_TEXTS, re.compile(r".*", re.DOTALL)),
)
# NOT NULL without DEFAULT; zero dates are NULL in the lake, so they need no fill
_ZEROS = {**dict.fromkeys((*_INTEGERS, "decimal", "float", "double"), "0"), **dict.fromkeys((*_TEXTS, "text"), "")}
_ZERO_TEXTS = {"tinytext", "mediumtext", "longtext"}
_ZERO_DATES = {"date", "datetime"}


_DECIMAL_DIGITS_MAX = 65
_BY_SERVER = {"timestamp"}  # without a DEFAULT it has one or none by a setting of the server


class InitialValueUnknownError(Exception):
    """The message says why."""


def initial_value(column: ColumnDefinition) -> str | None:
    """The value as MySQL would print it; None for NULL. Raises InitialValueUnknownError where it cannot be said."""
    if column.generated:
        raise InitialValueUnknownError("it is a generated column")
    if column.auto_increment:
        raise InitialValueUnknownError("it is AUTO_INCREMENT")
    default = column.default
    if default is None:
        return None if column.nullable else _zero(column.type)
    if not default.constant:
        raise InitialValueUnknownError("its DEFAULT is an expression, a function or a literal in another notation")
    return None if default.value is None else _literal(column.type, default.value)


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
    if declared.base == "set" or declared.base in _ZERO_TEXTS:
        return ""
    if declared.base not in _ZEROS:
        raise InitialValueUnknownError(f"it is NOT NULL without a DEFAULT, and of type {declared.base}")
    return _ZEROS[declared.base]


def _literal(declared: DeclaredType, value: str) -> str:
    if declared.base in {"enum", "set"}:
        return _label(declared, value)
    for bases, pattern in _LITERALS:
        if declared.base in bases and pattern.fullmatch(value):
            return value.rstrip(" ") if declared.base == "char" else value
    raise InitialValueUnknownError(f"its DEFAULT would be converted to {declared.base}")


def _label(declared: DeclaredType, value: str) -> str:
    chosen = [value] if declared.base == "enum" else [part for part in value.split(",") if part]
    places = [declared.labels.index(label) for label in chosen if label in declared.labels]
    if len(places) != len(chosen) or places != sorted(set(places)):
        raise InitialValueUnknownError("its DEFAULT is not spelt like its labels")
    return value
