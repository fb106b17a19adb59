"""Makes the Avro schemas of a table: a record with its columns, the envelope of a change, and the record of its key. Pure; used by `rows`.

Every column is a union of null and its type, and null is the default. So a schema change that adds or drops columns is compatible
with the versions before it, in the sense of BACKWARD.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import re
from collections.abc import Sequence
from typing import Any

from sluice.cdc_engine.binlog.column_types.numbers import BYTES
from sluice.cdc_engine.binlog.entries.numbers import SqlType
from sluice.cdc_engine.binlog.entries.texts import ColumnTexts
from sluice.cdc_engine.binlog.type_codes import TypeCode
from sluice.cdc_engine.contracts import Column

NAMESPACE = "sluice"
LONG_BITS = 64  # A number with more digits than a signed one of so many bits is a decimal.
UNSIGNED_PRECISION = 20
# Characters that no Avro name has, a digit at the beginning, and what looks like an escape.
ESCAPED = re.compile(r"[^A-Za-z0-9_]|^[0-9]|_(?=u[0-9a-f]{4})")
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


class AvroKind(enum.IntEnum):
    """How the kernel encodes a column's text."""

    LONG = 0
    DECIMAL = 1
    DATE = 2
    DATETIME = 3
    TIME = 4
    FLOAT = 5
    DOUBLE = 6
    STRING = 7
    BYTES = 8


@dataclasses.dataclass(frozen=True)
class AvroType:
    """The type of a column. `scale`: of a decimal."""

    kind: AvroKind
    schema: Any
    scale: int = 0


@dataclasses.dataclass(frozen=True)
class TableSchemas:
    """The schemas of a table version, as JSON. `record`: the full name of the envelope. `key` is empty for a table without a key."""

    record: str
    value: str
    key_record: str
    key: str


STRING = AvroType(AvroKind.STRING, "string")
# Avro's own times are within a day. The attribute distinguishes a TIME from a BIGINT, when schemas are compared.
TIME = {"type": "long", "column_type": "time"}
MOMENTS = {
    TypeCode.DATE: AvroType(AvroKind.DATE, {"type": "int", "logicalType": "date"}),
    TypeCode.DATETIME: AvroType(AvroKind.DATETIME, {"type": "long", "logicalType": "local-timestamp-micros"}),
    TypeCode.TIMESTAMP: AvroType(AvroKind.DATETIME, {"type": "long", "logicalType": "timestamp-micros"}),
    TypeCode.TIME: AvroType(AvroKind.TIME, TIME),
    TypeCode.FLOAT: AvroType(AvroKind.FLOAT, "float"),
    TypeCode.DOUBLE: AvroType(AvroKind.DOUBLE, "double"),
    TypeCode.YEAR: AvroType(AvroKind.LONG, "int"),
}
SAME_AS = {
    TypeCode.DATETIME2: TypeCode.DATETIME,
    TypeCode.TIMESTAMP2: TypeCode.TIMESTAMP,
    TypeCode.TIME2: TypeCode.TIME,
}


def avro_name(name: str) -> str:
    """Returns a name that Avro accepts: each other character as `_u` and the four hexadecimal digits of its UTF-16 units."""
    return ESCAPED.sub(lambda found: "".join(map(_escape, _units(found.group()))), name) or "_"


def avro_type(column: Column, texts: ColumnTexts) -> AvroType:
    """Returns the type of a column. `texts`: how it is shown, which is what the kernel encodes."""
    code = TypeCode(column.type_code)
    is_year = code == TypeCode.YEAR and column.mysql_type.startswith("year")
    if texts.sql_type == SqlType.VARCHAR and not is_year:  # also a digest of any other type
        return STRING
    if code in BYTES:
        return _integer(BYTES[code] * 8, unsigned=column.unsigned)
    if code == TypeCode.BIT:
        return _integer((column.metadata >> 8) * 8 + (column.metadata & 0xFF), unsigned=True)
    if code == TypeCode.NEWDECIMAL:
        return _decimal(column.metadata >> 8, column.metadata & 0xFF)
    if texts.sql_type == SqlType.BLOB:
        return AvroType(AvroKind.BYTES, "bytes")
    return MOMENTS.get(SAME_AS.get(code, code), STRING)


def table_schemas(
    database: str, table: str, columns: Sequence[Column], types: Sequence[AvroType], key: Sequence[str]
) -> TableSchemas:
    """Returns the schemas of a table. `key`: the names of its key columns."""
    namespace = f"{NAMESPACE}.{avro_name(database)}.{avro_name(table)}"
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
    keys = {name.lower() for name in key}
    own = [field for column, field in zip(columns, fields, strict=True) if column.name.lower() in keys]
    key_record = {"type": "record", "name": "Key", "namespace": namespace, "fields": own}
    return TableSchemas(f"{namespace}.Envelope", _text(envelope), f"{namespace}.Key", _text(key_record) if own else "")


def _field(column: Column, kind: AvroType) -> dict[str, Any]:
    name = avro_name(column.name)
    found = {"name": name, "type": ["null", kind.schema], "default": None}
    return found if name == column.name else {**found, "column": column.name}


def _integer(bits: int, *, unsigned: bool) -> AvroType:
    if unsigned and bits >= LONG_BITS:
        return _decimal(UNSIGNED_PRECISION, 0)
    return AvroType(AvroKind.LONG, "int" if bits + unsigned <= LONG_BITS // 2 else "long")


def _decimal(precision: int, scale: int) -> AvroType:
    schema = {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    return AvroType(AvroKind.DECIMAL, schema, scale)


def _units(text: str) -> list[int]:
    data = text.encode("utf-16-be")
    return [int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2)]


def _escape(unit: int) -> str:
    return f"_u{unit:04x}"


def _text(schema: Any) -> str:
    return json.dumps(schema, separators=(",", ":"))
