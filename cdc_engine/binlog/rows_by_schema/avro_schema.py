"""Makes the Avro schemas of a table: a record with the table's columns, the envelope of a change, and a record with the key columns.

Every field of a column is a union of null and the column's type, and null is the default. So a schema remains compatible with the previous
schema (the registry's compatibility level BACKWARD) if columns are added or dropped.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Sequence
from typing import Any

from sluice.cdc_engine.binlog.entries.texts import ColumnTexts
from sluice.cdc_engine.binlog.rows_by_schema.columns import (
    NAMESPACE,
    ColumnKind,
    TableSchemas,
    column_type,
    is_key,
    namespace_of,
    schema_name,
)
from sluice.cdc_engine.contracts import Column

NAMES = {"type": "array", "items": "string"}
SOURCE = {
    "type": "record",
    "name": "Source",
    "namespace": NAMESPACE,
    "fields": [
        {"name": "file", "type": "string"},
        {"name": "pos", "type": "long"},
        {"name": "gtid", "type": ["null", "string"], "default": None},
        {"name": "ts_ms", "type": "long"},
        {"name": "server_id", "type": "long"},
        {"name": "db", "type": "string"},
        {"name": "table", "type": "string"},
    ],
}


@dataclasses.dataclass(frozen=True)
class AvroType:
    """The Avro type of a column. `kind`: the kind of the column's values. `schema`: the type as in the JSON of an Avro schema. `scale`: the
    scale of a decimal, else 0.
    """

    kind: ColumnKind
    schema: Any
    scale: int = 0


UNSIGNED_PRECISION = 20
# The Avro type of a TIME column. Avro's time-micros is not used, because its values must be less than a day, and a TIME can be longer. The
# property `column_type` distinguishes a TIME from a BIGINT when schemas are compared.
TIME = {"type": "long", "column_type": "time"}
NAMES_OF_KINDS: dict[ColumnKind, Any] = {
    ColumnKind.INT: "int",
    ColumnKind.LONG: "long",
    ColumnKind.DATE: {"type": "int", "logicalType": "date"},
    ColumnKind.DATETIME: {"type": "long", "logicalType": "local-timestamp-micros"},
    ColumnKind.TIMESTAMP: {"type": "long", "logicalType": "timestamp-micros"},
    ColumnKind.TIME: TIME,
    ColumnKind.FLOAT: "float",
    ColumnKind.DOUBLE: "double",
    ColumnKind.STRING: "string",
    ColumnKind.BYTES: "bytes",
}


def avro_type(column: Column, texts: ColumnTexts) -> AvroType:
    """Returns the Avro type of a column. `texts`: how the column's values are converted to the texts that the kernels encode."""
    found = column_type(column, texts)
    if found.kind == ColumnKind.DECIMAL:
        return AvroType(found.kind, _decimal(found.precision, found.scale), found.scale)
    if found.kind == ColumnKind.UNSIGNED:
        return AvroType(found.kind, _decimal(UNSIGNED_PRECISION, 0))
    return AvroType(found.kind, NAMES_OF_KINDS[found.kind])


def table_schemas(
    database: str, table: str, columns: Sequence[Column], types: Sequence[AvroType], key: Sequence[str]
) -> TableSchemas:
    """Returns the Avro schemas of a table's messages. `types`: the Avro types of `columns`. `key`: the names of the key columns."""
    namespace = namespace_of(database, table)
    fields = [_field(column, each) for column, each in zip(columns, types, strict=True)]
    envelope = {
        "type": "record",
        "name": "Envelope",
        "namespace": namespace,
        "fields": [
            {
                "name": "before",
                "type": ["null", {"type": "record", "name": "Value", "fields": fields}],
                "default": None,
            },
            {"name": "after", "type": ["null", "Value"], "default": None},
            {"name": "source", "type": SOURCE},
            {"name": "op", "type": "string"},
            {"name": "ts_ms", "type": "long"},
            {"name": "omitted", "type": NAMES, "default": []},
            {"name": "omitted_before", "type": NAMES, "default": []},
        ],
    }
    own = list(itertools.compress(fields, is_key(columns, key)))
    key_record = {"type": "record", "name": "Key", "namespace": namespace, "fields": own}
    return TableSchemas(f"{namespace}.Envelope", _text(envelope), f"{namespace}.Key", _text(key_record) if own else "")


def _field(column: Column, kind: AvroType) -> dict[str, Any]:
    name = schema_name(column.name)
    found = {"name": name, "type": ["null", kind.schema], "default": None}
    return found if name == column.name else {**found, "column": column.name}


def _decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def _text(schema: Any) -> str:
    return json.dumps(schema, separators=(",", ":"))
