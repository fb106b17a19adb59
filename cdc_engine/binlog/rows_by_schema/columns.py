"""Determines the kind of each column's values and the column's name in a schema, for both Avro and Protobuf. `avro_schema` and
`protobuf_schema` map each kind to a type of their format.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Sequence

from sluice.cdc_engine.binlog.column_types.numbers import BYTES
from sluice.cdc_engine.binlog.entries.numbers import SqlType
from sluice.cdc_engine.binlog.entries.texts import ColumnTexts
from sluice.cdc_engine.binlog.type_codes import TypeCode
from sluice.cdc_engine.contracts import Column

NAMESPACE = "sluice"
# An unsigned integer with this number of bits does not fit into a signed 64-bit integer, so its kind is UNSIGNED.
LONG_BITS = 64
# Matches what `schema_name` escapes: characters that Avro or Protobuf refuses, a digit at the start, and text that looks like an escape.
ESCAPED = re.compile(r"[^A-Za-z0-9_]|^[0-9]|_(?=u[0-9a-f]{4})")


class ColumnKind(enum.IntEnum):
    """The kind of a column's values, which determines how the kernels encode the values. The module `kernel` defines the same numbers."""

    INT = 0
    LONG = 1
    UNSIGNED = 2
    DECIMAL = 3
    DATE = 4
    DATETIME = 5
    TIMESTAMP = 6
    TIME = 7
    FLOAT = 8
    DOUBLE = 9
    STRING = 10
    BYTES = 11


@dataclasses.dataclass(frozen=True)
class SchemaType:
    """The kind of a column's values, with the precision and the scale if the kind is DECIMAL. For other kinds, `precision` and `scale` are
    0.
    """

    kind: ColumnKind
    precision: int = 0
    scale: int = 0


@dataclasses.dataclass(frozen=True)
class TableSchemas:
    """The schemas of a table version's messages. `value`, `key`: the texts of the schemas of a message's value and key. `key` is empty for
    a table without a key. `record`, `key_record`: the full names of the record types of value and key.
    """

    record: str
    value: str
    key_record: str
    key: str


@dataclasses.dataclass(frozen=True)
class SchemaIds:
    """The ids and texts that the registry has for a table's schemas. `value`, `key`: the ids of the schemas of a message's value and key.
    `value_text`, `key_text`: the texts of these schemas. `key` is None for a table without a key.
    """

    value: int
    key: int | None
    value_text: str = ""
    key_text: str = ""


KINDS = {
    TypeCode.DATE: ColumnKind.DATE,
    TypeCode.DATETIME: ColumnKind.DATETIME,
    TypeCode.DATETIME2: ColumnKind.DATETIME,
    TypeCode.TIMESTAMP: ColumnKind.TIMESTAMP,
    TypeCode.TIMESTAMP2: ColumnKind.TIMESTAMP,
    TypeCode.TIME: ColumnKind.TIME,
    TypeCode.TIME2: ColumnKind.TIME,
    TypeCode.FLOAT: ColumnKind.FLOAT,
    TypeCode.DOUBLE: ColumnKind.DOUBLE,
    TypeCode.YEAR: ColumnKind.INT,
}


def column_type(column: Column, texts: ColumnTexts) -> SchemaType:
    """Returns the kind of a column's values. `texts`: how the values are converted to the texts that the kernels encode."""
    code = TypeCode(column.type_code)
    is_year = code == TypeCode.YEAR and column.mysql_type.startswith("year")
    # With a `hash` mask, a column of any type has the sqlType VARCHAR, and its values are strings.
    if texts.sql_type == SqlType.VARCHAR and not is_year:
        return SchemaType(ColumnKind.STRING)
    if code in BYTES:
        return _integer(BYTES[code] * 8, unsigned=column.unsigned)
    if code == TypeCode.BIT:
        return _integer((column.metadata >> 8) * 8 + (column.metadata & 0xFF), unsigned=True)
    if code == TypeCode.NEWDECIMAL:
        return SchemaType(ColumnKind.DECIMAL, column.metadata >> 8, column.metadata & 0xFF)
    if texts.sql_type == SqlType.BLOB:
        return SchemaType(ColumnKind.BYTES)
    return SchemaType(KINDS.get(code, ColumnKind.STRING))


def schema_name(name: str) -> str:
    """Returns the name of a column, table or database in a form that schemas of Avro and Protobuf permit. Each UTF-16 unit of a character
    that is not permitted is replaced by `_u` and four hexadecimal digits.
    """
    return ESCAPED.sub(lambda found: "".join(map(_escape, _units(found.group()))), name) or "_"


def namespace_of(database: str, table: str) -> str:
    return f"{NAMESPACE}.{schema_name(database)}.{schema_name(table)}"


def is_key(columns: Sequence[Column], key: Sequence[str]) -> list[bool]:
    """Returns for each column whether it belongs to the key."""
    keys = {name.lower() for name in key}
    return [column.name.lower() in keys for column in columns]


def _integer(bits: int, *, unsigned: bool) -> SchemaType:
    if unsigned and bits >= LONG_BITS:
        return SchemaType(ColumnKind.UNSIGNED)
    return SchemaType(ColumnKind.INT if bits + unsigned <= LONG_BITS // 2 else ColumnKind.LONG)


def _units(text: str) -> list[int]:
    data = text.encode("utf-16-be")
    return [int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2)]


def _escape(unit: int) -> str:
    return f"_u{unit:04x}"
