"""Decodes character and byte strings: CHAR, VARCHAR, TEXT, BINARY, VARBINARY, BLOB, geometry and VECTOR.

Geometry (SRID and WKB) and VECTOR (little-endian floats) keep the bytes that the server stores.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.cdc_engine.binlog.column_types import gather as rows_gather
from sluice.cdc_engine.binlog.column_types import transcoding
from sluice.cdc_engine.binlog.column_types.entry import (
    AnyArray,
    ColumnType,
    ValueRefusedError,
    Values,
    buffer_of,
    column_type,
)
from sluice.cdc_engine.binlog.type_codes import TypeCode
from sluice.cdc_engine.contracts import Column

PREFIX_BYTES = {TypeCode.TINY_BLOB: 1, TypeCode.BLOB: 2, TypeCode.MEDIUM_BLOB: 3, TypeCode.LONG_BLOB: 4}

VECTOR_PREFIX_BYTES = 4


@column_type(TypeCode.STRING)
def char(column: Column) -> ColumnType:
    """Returns the type of a CHAR or BINARY column. `metadata`: length in bytes. Row images omit trailing spaces of a CHAR, and trailing
    zero bytes of a BINARY. The declared type decides which of them are missing, because conf/ may set another charset (`charsets`).
    """
    length, declared = column.metadata, column.mysql_type.lower().partition("(")[0]
    prefix_bytes = 2 if length > 255 else 1
    if not transcoding.is_text(column.charset):
        return _binary(prefix_bytes, _bytes if declared == "char" else functools.partial(_padded, width=length))
    found = _text(prefix_bytes, column)
    if declared != "binary":
        return found
    return dataclasses.replace(found, finish=functools.partial(_padded_text, width=length, decode=found.finish))


@column_type(TypeCode.VARCHAR, TypeCode.VAR_STRING)
def varchar(column: Column) -> ColumnType:
    prefix_bytes = 2 if column.metadata > 255 else 1
    return _text(prefix_bytes, column) if transcoding.is_text(column.charset) else _binary(prefix_bytes, _bytes)


@column_type(*PREFIX_BYTES)
def blob(column: Column) -> ColumnType:
    """Returns the type of a BLOB or TEXT column. `metadata`: number of bytes of the length before each value."""
    prefix_bytes = column.metadata or PREFIX_BYTES[TypeCode(column.type_code)]
    return _text(prefix_bytes, column) if transcoding.is_text(column.charset) else _binary(prefix_bytes, _bytes)


@column_type(TypeCode.GEOMETRY)
def geometry(column: Column) -> ColumnType:
    return _binary(column.metadata, _bytes)


@column_type(TypeCode.VECTOR)
def vector(column: Column) -> ColumnType:
    """Returns the type of MySQL's VECTOR column. MariaDB's VECTOR has the type code of VARBINARY, so `varchar` decodes it."""
    return _binary(column.metadata or VECTOR_PREFIX_BYTES, _bytes)


def _binary(prefix_bytes: int, finish: Callable[[Values], AnyArray]) -> ColumnType:
    return ColumnType(prefix_bytes=prefix_bytes, arrow=pa.binary(), spark="binary", finish=finish)


def _text(prefix_bytes: int, column: Column) -> ColumnType:
    finish = transcoding.decoder(column.charset, column.name)
    return ColumnType(prefix_bytes=prefix_bytes, arrow=pa.string(), spark="string", finish=finish)


def _bytes(values: Values) -> AnyArray:
    array, _ = transcoding.copied(values, pa.binary())
    return array


def _padded_text(values: Values, width: int, decode: Callable[[Values], AnyArray]) -> AnyArray:
    """Decodes values of a BINARY column as text, with the zero bytes that the row image omits."""
    buffers: Any = _padded(values, width).buffers()
    offsets = np.frombuffer(buffers[1], np.int32).astype(np.int64)
    buffer = np.frombuffer(buffers[2], np.uint8) if buffers[2].size else np.zeros(1, np.uint8)
    return decode(Values(buffer, np.where(values.starts < 0, -1, offsets[:-1]), np.diff(offsets)))


def _padded(values: Values, width: int) -> AnyArray:
    too_long = np.flatnonzero(values.sizes > width)
    if len(too_long):
        raise ValueRefusedError(int(too_long[0]), f"is longer than the {width} bytes of its type")
    offsets = np.empty(values.count + 1, np.int32)
    out = np.zeros(values.count * width, np.uint8)
    rows_gather.copy_padded(values.buffer, values.starts, values.sizes, width, offsets, out)
    return pa.Array.from_buffers(pa.binary(), values.count, [values.validity(), buffer_of(offsets), buffer_of(out)])
