"""Finds the columns whose type differs between an old and a new Avro schema of a table, if consumers with the new schema would misread
messages that were written with the old schema. Pure.

The registry's own check (compatibility BACKWARD) does not find all these columns: the check ignores logical types, and accepts a change
between bytes and string.
"""

from __future__ import annotations

import json
from typing import Any

WIDENED = {("int", "long"), ("float", "double")}


def changed_columns(old: str, new: str) -> list[str]:
    """Returns a text for each column whose type differs between the schemas `old` and `new`, with both types. Ignores added and dropped
    columns. Also ignores changes from int to long and from float to double, because Avro converts these values when it reads old messages.

    Returns [] if the records of the two schemas have different names, because a consumer with the new schema then fails at a message of the
    old schema instead of misreading the message. Raises ValueError if `old` is not an Avro schema.
    """
    after = json.loads(new)
    try:
        before = json.loads(old)
        if not isinstance(before, dict) or _full_name(before) != _full_name(after):
            return []
        types = _columns(before)
    except (AttributeError, KeyError, RecursionError, TypeError):
        raise ValueError("the latest version is not an Avro schema") from None
    return [
        f"{name} from {_shown(types[name])} to {_shown(each)}"
        for name, each in _columns(after).items()
        if name in types and types[name] != each and (_shown(types[name]), _shown(each)) not in WIDENED
    ]


def _columns(record: Any) -> dict[str, Any]:
    """Returns the type of each column. `record` is the record of a key, or an envelope. The columns of an envelope are in its fields
    `before` and `after`.
    """
    fields = {field["name"]: field for field in record.get("fields", ())}
    found = _nested(fields["before"]["type"]) if "before" in fields and "after" in fields else None
    rows = found.get("fields", ()) if found else fields.values()
    return {field["name"]: _type(field["type"]) for field in rows}


def _nested(kind: Any) -> Any:
    """Returns the record type in a union, or None if the union has no record."""
    return next((each for each in kind if isinstance(each, dict) and each.get("type") == "record"), None)


def _type(kind: Any) -> Any:
    """Returns the parts of a column's type that decide how the column's bytes are read. `kind` is the type, or a union of the type and
    null.
    """
    own = next((each for each in kind if each != "null"), "null") if isinstance(kind, list) else kind
    if not isinstance(own, dict):
        return (own,)
    return tuple(own.get(each) for each in ("type", "logicalType", "precision", "scale", "column_type"))


def _shown(kind: Any) -> str:
    base, logical, precision, scale, column_type = (*kind, None, None, None, None)[:5]
    if precision is not None:
        return f"{logical}({precision},{scale or 0})"
    return str(logical or column_type or base)


def _full_name(record: Any) -> str:
    name = record.get("name", "")
    return name if "." in name else f"{record.get('namespace', '')}.{name}"
