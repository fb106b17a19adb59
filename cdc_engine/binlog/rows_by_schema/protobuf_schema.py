"""Makes the Protobuf schemas of a table: a message with the table's columns, the envelope of a change, and a message with the key columns.

Every column is an `optional` field, which is absent if the value is NULL. This module numbers the fields for a new subject of the registry.
For an existing subject, `brokers.registry.field_numbers` replaces these numbers by the numbers in the subject's latest schema.

Protobuf has no logical types. So each kind of value that consumers must distinguish has its own Protobuf type. For example, only a DATE is
`sint32`.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from sluice.cdc_engine.binlog.rows_by_schema.columns import ColumnKind, TableSchemas, is_key, namespace_of, schema_name
from sluice.cdc_engine.binlog.rows_by_schema.protobuf_text import ProtobufField, ProtobufMessage, ProtobufSchema, after
from sluice.cdc_engine.contracts import Column

TYPES = {
    ColumnKind.INT: "int64",
    ColumnKind.LONG: "int64",
    ColumnKind.UNSIGNED: "uint64",
    ColumnKind.DECIMAL: "string",
    ColumnKind.DATE: "sint32",
    ColumnKind.DATETIME: "sfixed64",
    ColumnKind.TIMESTAMP: "fixed64",
    ColumnKind.TIME: "sint64",
    ColumnKind.FLOAT: "float",
    ColumnKind.DOUBLE: "double",
    ColumnKind.STRING: "string",
    ColumnKind.BYTES: "bytes",
}
ROWS = ("Value", "Key")  # Names of the messages whose fields are a table's columns.
ENVELOPE = ProtobufMessage(
    "Envelope",
    (
        ProtobufField("before", "Value", 1),
        ProtobufField("after", "Value", 2),
        ProtobufField("source", "Source", 3),
        ProtobufField("op", "string", 4),
        ProtobufField("ts_ms", "int64", 5),
        ProtobufField("omitted", "string", 6, "repeated"),
        ProtobufField("omitted_before", "string", 7, "repeated"),
    ),
)
SOURCE = ProtobufMessage(
    "Source",
    (
        ProtobufField("file", "string", 1),
        ProtobufField("pos", "int64", 2),
        ProtobufField("gtid", "string", 3, "optional"),
        ProtobufField("ts_ms", "int64", 4),
        ProtobufField("server_id", "int64", 5),
        ProtobufField("db", "string", 6),
        ProtobufField("table", "string", 7),
    ),
)


def protobuf_schemas(
    database: str, table: str, columns: Sequence[Column], kinds: Sequence[ColumnKind], key: Sequence[str]
) -> TableSchemas:
    """Returns the Protobuf schemas of a table's messages. `kinds`: the kinds of `columns`. `key`: the names of the key columns."""
    package = namespace_of(database, table)
    fields = [_field(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    value = ProtobufSchema(package, (ENVELOPE, ProtobufMessage("Value", _numbered(fields)), SOURCE))
    own = list(itertools.compress(fields, is_key(columns, key)))
    key_text = ProtobufSchema(package, (ProtobufMessage("Key", _numbered(own)),)).text if own else ""
    return TableSchemas(value.record, value.text, f"{package}.Key", key_text)


def rows_of(schema: ProtobufSchema) -> ProtobufMessage:
    """Returns the message, `Value` or `Key`, whose fields are the table's columns. Raises ValueError if the schema has no such message."""
    found = next((each for each in schema.messages if each.name in ROWS), None)
    if found is None:
        raise ValueError("the schema has no message Value or Key")
    return found


def _field(column: Column, kind: ColumnKind) -> ProtobufField:
    name = schema_name(column.name)
    return ProtobufField(name, TYPES[kind], 0, "optional", "" if name == column.name else column.name)


def _numbered(fields: Sequence[ProtobufField]) -> tuple[ProtobufField, ...]:
    numbers = itertools.accumulate(fields[1:], lambda number, _: after(number), initial=1)
    return tuple(dataclasses.replace(field, number=number) for field, number in zip(fields, numbers, strict=False))
