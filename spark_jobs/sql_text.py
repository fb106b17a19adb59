"""Generates parts of Spark SQL: identifiers, literals and type names. Code that builds statements for Spark quotes names and values with
these functions.
"""

from __future__ import annotations

import datetime as dt
import decimal
import re
from typing import Any

from sluice.spark_jobs.object_store import spark_path

INTEGER_SUFFIX = {"tinyint": "Y", "smallint": "S", "int": "", "bigint": "L"}
# deltalake's name of a primitive type → Spark SQL's name. All other types have the same name in both.
DELTA_TYPES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}


def identifier(name: str) -> str:
    """Quotes a name of a column, a table or a path with backticks. Doubles each backtick in it."""
    return f"`{name.replace('`', '``')}`"


def identifiers(names: tuple[str, ...], prefix: str = "") -> str:
    return ", ".join(prefix + identifier(name) for name in names)


def double_quoted(name: str) -> str:
    """Quotes a name for the SQL of DuckDB and deltalake."""
    return '"' + name.replace('"', '""') + '"'


def delta_path(path: str) -> str:
    """Returns the SQL relation of the Delta table at a path. A path in S3 gets the URL scheme that Spark uses."""
    return f"delta.{identifier(spark_path(path))}"


def text(value: str) -> str:
    r"""Returns a string literal. Escapes backslash and quote as Spark's parser expects, and control characters as Unicode escapes."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return "'" + re.sub(r"[\x00-\x1f]", lambda found: f"\\u{ord(found[0]):04x}", escaped) + "'"


def timestamp_us(value: int) -> str:
    """Returns a timestamp expression for a number of microseconds since 1970 UTC."""
    return f"timestamp_micros({int(value)}L)"


def spark_type(delta_type: Any) -> str:
    """Returns Spark SQL's name for a type of deltalake's schema. The names of nested types are the same in both."""
    name = str(getattr(delta_type, "type", delta_type))
    return DELTA_TYPES.get(name, name)


def delta_type(type_name: str) -> str:
    """Returns the name that Delta's log has for a primitive type of Spark SQL."""
    return next((delta for delta, spark in DELTA_TYPES.items() if spark == type_name), type_name)


def typed_literal(value: Any, type_name: str) -> str | None:
    """Converts a value from a manifest to a literal of exactly this type. Returns None if the value does not have this type, or if this
    function does not support the type.

    The literal must have the column's exact type, because Delta does not skip files by a cast expression.
    """
    if type_name in INTEGER_SUFFIX and isinstance(value, int) and not isinstance(value, bool):
        # The minus sign must be part of the literal. The lowest value of a type would be out of range without its sign.
        return f"{value}{INTEGER_SUFFIX[type_name]}"
    if type_name == "string" and isinstance(value, str):
        return text(value)
    if type_name == "date" and isinstance(value, str):
        return _date(value)
    if type_name.startswith("decimal(") and isinstance(value, int | str) and not isinstance(value, bool):
        return _decimal(value, type_name)
    return None


def _date(value: str) -> str | None:
    try:
        return f"DATE'{dt.date.fromisoformat(value).isoformat()}'"
    except ValueError:
        return None


def _decimal(value: int | str, type_name: str) -> str | None:
    try:
        number = decimal.Decimal(value)
    except decimal.InvalidOperation:
        return None
    return f"CAST({text(format(number, 'f'))} AS {type_name})" if number.is_finite() else None
