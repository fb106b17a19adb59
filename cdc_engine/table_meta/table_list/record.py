"""Converts one table of the list of tables to the text of its record and back. Pure functions. A value that equals its default is left out
of the text.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from sluice.batch_manifest.values import Cascade
from sluice.cdc_engine.binlog.row_rules.history_rows import HIDDEN
from sluice.cdc_engine.contracts import Column, TableVersion
from sluice.cdc_engine.errors import MetaError
from sluice.cdc_engine.table_meta.table_list.values import ListedTable

FOLDER = "tables"
AGAIN = "remove it, and the engine writes it again"
UNREADABLE = (KeyError, TypeError, ValueError, AttributeError)


def record_of(name: str) -> str:
    """Returns the name of the record for a "database.table"."""
    return f"{FOLDER}/{hashlib.sha256(name.encode('utf-8', 'surrogateescape')).hexdigest()[:32]}.json"


def to_text(listed: ListedTable) -> str:
    """Returns the text of a table's record. Equal tables have equal texts."""
    content: dict[str, Any] = {"name": listed.name}
    if listed.version is not None:
        content |= {"table": table_to_json(listed.version), "types": listed.types}
    if listed.comments:
        content["comments"] = dict(listed.comments)
    if listed.cascades:
        content["cascades"] = [dataclasses.asdict(cascade) for cascade in listed.cascades]
    return json.dumps(content) + "\n"


def parsed(text: str, where: str) -> ListedTable:
    """Parses the text of a record. `where` is the record's location for messages. Raises MetaError if the text cannot be parsed."""
    try:
        content = json.loads(text)
        version = content.get("table")
        return ListedTable(
            name=str(content["name"]),
            version=None if version is None else table_of(version),
            types=tuple(content.get("types", ())),
            comments=content.get("comments", {}),
            cascades=tuple(cascade_of(each) for each in content.get("cascades", ())),
        )
    except UNREADABLE as error:
        raise MetaError(f"the record {where} of a table cannot be read ({error}); {AGAIN} at its next start") from error


def types_of(table: TableVersion) -> tuple[str, ...]:
    """Returns the types that a table's columns have in the lake, or () if the lake has no type for one of the columns."""
    from sluice.cdc_engine.binlog.column_types import TypeUnsupportedError, type_of  # noqa: PLC0415  readers import no kernels

    try:
        return tuple(type_of(column).spark for column in _seen(table).columns)
    except TypeUnsupportedError:
        return ()


def table_to_json(table: TableVersion) -> dict[str, Any]:
    record = dataclasses.asdict(_seen(table))
    columns = [_spoken(column, _COLUMN_DEFAULTS) for column in record["columns"]]
    return {**_spoken(record, _TABLE_DEFAULTS), "columns": columns}


def table_of(record: Mapping[str, Any]) -> TableVersion:
    """Parses the record of `table_to_json`. Raises one of `UNREADABLE`."""
    columns = tuple(_column(column) for column in record["columns"])
    cascades = tuple(cascade_of(cascade) for cascade in record["cascades"])
    return TableVersion(**{**record, "columns": columns, "key": tuple(record["key"]), "cascades": cascades})


def cascade_of(record: Mapping[str, Any]) -> Cascade:
    """Converts a record to a cascade. Raises one of `UNREADABLE`."""
    lists = {name: tuple(record[name]) for name in ("parent", "child", "columns", "referenced", "key")}
    return Cascade(**{**record, **lists})


def _column(record: Mapping[str, Any]) -> Column:
    return Column(**{**record, **{name: tuple(record.get(name, ())) for name in ("labels", "default")}})


def _seen(table: TableVersion) -> TableVersion:
    """Returns the table without the columns that the lake does not have."""
    return dataclasses.replace(table, columns=tuple(each for each in table.columns if each.generated not in HIDDEN))


def _spoken(record: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a record without the values that equal their defaults. `table_of` adds these values again."""
    return {name: value for name, value in record.items() if name not in defaults or value != defaults[name]}


def _defaults(kind: type[Column | TableVersion]) -> dict[str, Any]:
    return {each.name: each.default for each in dataclasses.fields(kind) if each.default is not dataclasses.MISSING}


_COLUMN_DEFAULTS = _defaults(Column)
_TABLE_DEFAULTS = {name: value for name, value in _defaults(TableVersion).items() if name not in {"key", "cascades"}}
