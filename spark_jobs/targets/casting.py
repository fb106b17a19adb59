"""Decides which types Delta can widen in place, and how values are converted from one type to another. Pure functions, which `alterations`
uses.

Types have Spark SQL's names, as in the manifest and the Delta log. Delta's rules are in its documentation, delta.io, "Type widening".
"""

from __future__ import annotations

import re

INTEGERS = {"tinyint": 1, "smallint": 2, "int": 4, "bigint": 8}
FRACTIONS = {"float", "double"}
MOMENTS = {"date", "timestamp", "timestamp_ntz"}
# To widen an integer type to a decimal, Delta requires this many digits before the decimal point.
INTEGER_DIGITS_MIN = {
    "tinyint": 10,
    "smallint": 10,
    "int": 10,
    "bigint": 20,
}


def widens(old: str, new: str) -> bool:
    """Returns whether Delta's type widening supports the change from `old` to `new`."""
    if old in INTEGERS and new in INTEGERS:
        return INTEGERS[old] < INTEGERS[new]
    if old in INTEGERS and (parts := _decimal(new)):
        return parts[0] - parts[1] >= INTEGER_DIGITS_MIN[old]
    if (before := _decimal(old)) and (after := _decimal(new)):
        grown, scale_grown = after[0] - before[0], after[1] - before[1]
        return grown >= scale_grown >= 0
    return (old, new) in {
        ("tinyint", "double"),
        ("smallint", "double"),
        ("int", "double"),
        ("float", "double"),
        ("date", "timestamp_ntz"),
    }


def converted(expression: str, old: str, new: str) -> str:
    """Returns the SQL expression that converts a value from type `old` to type `new`. The expression gives NULL for values that cannot be
    converted. Fractions are rounded half away from zero, as in MySQL.
    """
    if new in INTEGERS and (old in FRACTIONS or _decimal(old)):
        expression = f"round({expression})"
    if not _casts_directly(old, new):
        expression = f"CAST({expression} AS string)"
    return f"try_cast({expression} AS {new})"


def _casts_directly(old: str, new: str) -> bool:
    if "string" in (old, new):
        return True
    return (_is_number(old) and _is_number(new)) or (old in MOMENTS and new in MOMENTS)


def _is_number(type_name: str) -> bool:
    return type_name in INTEGERS or type_name in FRACTIONS or type_name == "boolean" or _decimal(type_name) is not None


def _decimal(type_name: str) -> tuple[int, int] | None:
    """Returns the precision and the scale of a decimal, or None for other types."""
    found = re.fullmatch(r"decimal\((\d+),\s*(\d+)\)", type_name)
    return (int(found[1]), int(found[2])) if found else None
