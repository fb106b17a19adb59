"""Defines the columns of messages with a schema: what kind of value each has, its name in a schema, and the schemas of a table. Pure.

The formats share it: each assigns one of its own types to a kind.
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
LONG_BITS = 64  # A number with more digits than a signed one of so many bits is UNSIGNED.
# Characters that no name in a schema has, a digit at the beginning, and what looks like an escape.
ESCAPED = re.compile(r"[^A-Za-z0-9_]|^[0-9]|_(?=u[0-9a-f]{4})")


class ColumnKind(enum.IntEnum):
    """How the kernels encode a column's text. `kernel` has the same numbers."""

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
    """The kind of a column. `precision`, `scale`: of a decimal."""

    kind: ColumnKind
    precision: int = 0
    scale: int = 0


@dataclasses.dataclass(frozen=True)
class TableSchemas:
    """The schemas of a table version, as texts. `record`: the full name of the envelope. `key` is empty for a table without a key."""

    record: str
    value: str
    key_record: str
    key: str


@dataclasses.dataclass(frozen=True)
class SchemaIds:
    """The numbers that the registry gave to the schemas of a table, and the texts of these schemas. `key`: None without a key."""

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
    """Returns the type of a column. `texts`: how it is shown, which is what the kernels encode."""
    code = TypeCode(column.type_code)
    is_year = code == TypeCode.YEAR and column.mysql_type.startswith("year")
    if texts.sql_type == SqlType.VARCHAR and not is_year:  # also a digest of any other type
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
    """Returns a name that schemas accept: each other character as `_u` and the four hexadecimal digits of its UTF-16 units."""
    return ESCAPED.sub(lambda found: "".join(map(_escape, _units(found.group()))), name) or "_"


def namespace_of(database: str, table: str) -> str:
    return f"{NAMESPACE}.{schema_name(database)}.{schema_name(table)}"


def is_key(columns: Sequence[Column], key: Sequence[str]) -> list[bool]:
    """Returns which columns are among those of the key."""
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
