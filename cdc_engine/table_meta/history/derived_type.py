"""Derives a column's declared type from a table map, as exactly as the table map allows.

Some types look the same in a table map, so several declared types have one derived type: a UUID becomes binary(16), a JSON of MariaDB
becomes longtext, and every geometry type becomes geometry.
"""

from __future__ import annotations

from sluice.cdc_engine.binlog.events.table_map import BLOB_COMPRESSED, VARCHAR_COMPRESSED
from sluice.cdc_engine.binlog.type_codes import TypeCode
from sluice.cdc_engine.contracts import Column
from sluice.cdc_engine.table_meta.ddl.declared_type import DeclaredType

_NUMBERS = {
    TypeCode.TINY: "tinyint",
    TypeCode.SHORT: "smallint",
    TypeCode.INT24: "mediumint",
    TypeCode.LONG: "int",
    TypeCode.LONGLONG: "bigint",
    TypeCode.FLOAT: "float",
    TypeCode.DOUBLE: "double",
}
_PLAIN = {
    TypeCode.DATE: "date",
    TypeCode.YEAR: "year",
    TypeCode.JSON: "json",
    TypeCode.GEOMETRY: "geometry",
    TypeCode.TIME: "time",
    TypeCode.DATETIME: "datetime",
    TypeCode.TIMESTAMP: "timestamp",
    TypeCode.VECTOR: "vector",
}
_FRACTIONAL = {TypeCode.TIME2: "time", TypeCode.DATETIME2: "datetime", TypeCode.TIMESTAMP2: "timestamp"}
_BLOB_SIZES = {1: "tiny", 2: "", 3: "medium", 4: "long"}
_VARIABLE = (TypeCode.VARCHAR, TypeCode.VAR_STRING, VARCHAR_COMPRESSED)


def derived_type(column: Column, bytes_max: int) -> str:
    """Returns the declared type of a column as text, for example `int unsigned`. `bytes_max` is the length of the longest character of the
    column's charset in bytes, or 0 if the table map does not have the charset.
    """
    code, metadata = column.type_code, column.metadata
    if code in _NUMBERS:
        return DeclaredType(base=_NUMBERS[TypeCode(code)], unsigned=column.unsigned).text
    if code in _PLAIN:
        return _PLAIN[TypeCode(code)]
    if code in _FRACTIONAL:
        return DeclaredType(base=_FRACTIONAL[TypeCode(code)], length=metadata or -1).text
    if code == TypeCode.NEWDECIMAL:
        return DeclaredType(base="decimal", length=metadata >> 8, scale=metadata & 0xFF, unsigned=column.unsigned).text
    if code == TypeCode.BIT:
        return DeclaredType(base="bit", length=(metadata >> 8) * 8 + (metadata & 0xFF)).text
    if code in (TypeCode.ENUM, TypeCode.SET):
        return DeclaredType(base="enum" if code == TypeCode.ENUM else "set", labels=column.labels).text
    return _string(column, bytes_max).text


def _string(column: Column, bytes_max: int) -> DeclaredType:
    binary = column.charset == "binary"
    if column.type_code in (TypeCode.BLOB, BLOB_COMPRESSED):
        base = _BLOB_SIZES.get(column.metadata, "") + ("blob" if binary else "text")
        return DeclaredType(base=base, compressed=column.type_code == BLOB_COMPRESSED)
    compressed = column.type_code == VARCHAR_COMPRESSED
    varying = "var" if column.type_code in _VARIABLE else ""
    if binary or not bytes_max:  # Without a charset, only the length in bytes is known.
        return DeclaredType(base=f"{varying}binary", length=column.metadata - compressed, compressed=compressed)
    return DeclaredType(
        base=f"{varying}char", length=(column.metadata - compressed) // bytes_max, compressed=compressed
    )
