"""Text of Spark SQL: identifiers, literals, type names. Every name and value that enters a statement passes through here."""

from __future__ import annotations

import datetime as dt
import decimal
import re
from typing import Any

from spark_jobs.object_store import spark_path

INTEGER_SUFFIX = {"tinyint": "Y", "smallint": "S", "int": "", "bigint": "L"}
# what deltalake calls a primitive type → Spark SQL's name; the others are the same in both
DELTA_TYPES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}


def identifier(name: str) -> str:
    """A column name, quoted; a backtick in it is doubled."""
    return f"`{name.replace('`', '``')}`"


def identifiers(names: tuple[str, ...], prefix: str = "") -> str:
    return ", ".join(prefix + identifier(name) for name in names)


def delta_path(path: str) -> str:
    """The table at a path, as a relation. A path of an object store as Spark calls it."""
    return f"delta.{identifier(spark_path(path))}"


def text(value: str) -> str:
    """A string literal. Backslash and quote are escaped as Spark's parser reads them; control characters by their number."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return "'" + re.sub(r"[\x00-\x1f]", lambda found: f"\\u{ord(found[0]):04x}", escaped) + "'"


def timestamp_us(value: int) -> str:
    """An instant given in microseconds since 1970 UTC."""
    return f"timestamp_micros({int(value)}L)"


def spark_type(delta_type: Any) -> str:
    """Spark SQL's name of a type of deltalake's schema; nested types in deltalake's own words."""
    name = str(getattr(delta_type, "type", delta_type))
    return DELTA_TYPES.get(name, name)


def delta_type(type_name: str) -> str:
    """What the log of a Delta table calls a primitive type of Spark SQL."""
    return next((delta for delta, spark in DELTA_TYPES.items() if spark == type_name), type_name)


def typed_literal(value: Any, type_name: str) -> str | None:
    """A value of a manifest (JSON) as a literal of exactly this type, or None where the two do not go together.

    Exactly: a cast around a literal would keep Delta from skipping files by it.
    """
    if type_name in INTEGER_SUFFIX and isinstance(value, int) and not isinstance(value, bool):
        return f"{value}{INTEGER_SUFFIX[type_name]}"  # the sign belongs to the literal, so the lowest value fits too
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
