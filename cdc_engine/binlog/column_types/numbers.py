"""Decodes integers, floats, YEAR and BIT. An integer type becomes the smallest Spark type that fits all its values (docs/fidelity.md)."""

from __future__ import annotations

import functools

import numpy as np
import pyarrow as pa

from sluice.cdc_engine.binlog.column_types import gather as rows_gather
from sluice.cdc_engine.binlog.column_types.entry import AnyArray, ColumnType, Values, buffer_of, column_type
from sluice.cdc_engine.binlog.type_codes import TypeCode
from sluice.cdc_engine.contracts import Column, Int64s

BYTES = {TypeCode.TINY: 1, TypeCode.SHORT: 2, TypeCode.INT24: 3, TypeCode.LONG: 4, TypeCode.LONGLONG: 8}
SIGNED = {1: (pa.int8(), "tinyint"), 2: (pa.int16(), "smallint"), 3: (pa.int32(), "int"), 4: (pa.int32(), "int")}
UNSIGNED = {1: (pa.int16(), "smallint"), 2: (pa.int32(), "int"), 3: (pa.int32(), "int"), 4: (pa.int64(), "bigint")}
BIGINT = (pa.int64(), "bigint")
UNSIGNED_BIGINT = (pa.decimal128(20, 0), "decimal(20,0)")


@column_type(*BYTES)
def integer(column: Column) -> ColumnType:
    size = BYTES[TypeCode(column.type_code)]
    if column.unsigned:
        arrow, spark = UNSIGNED.get(size, UNSIGNED_BIGINT)
    else:
        arrow, spark = SIGNED.get(size, BIGINT)
    finish = functools.partial(_integers, arrow=arrow, size=size, signed=not column.unsigned)
    return ColumnType(width=size, arrow=arrow, spark=spark, finish=finish)


@column_type(TypeCode.FLOAT, TypeCode.DOUBLE)
def floating(column: Column) -> ColumnType:
    single = column.type_code == TypeCode.FLOAT
    arrow, spark, size = (pa.float32(), "float", 4) if single else (pa.float64(), "double", 8)
    return ColumnType(width=size, arrow=arrow, spark=spark, finish=functools.partial(_floats, arrow=arrow, size=size))


@column_type(TypeCode.YEAR)
def year(_column: Column) -> ColumnType:
    return ColumnType(width=1, arrow=pa.int32(), spark="int", finish=_years)


@column_type(TypeCode.BIT)
def bit(column: Column) -> ColumnType:
    """Returns the type of a BIT column, a big-endian number. `metadata`: number of whole bytes << 8 | number of additional bits."""
    bits = (column.metadata >> 8) * 8 + (column.metadata & 0xFF)
    size = (bits + 7) // 8
    if bits == 1:
        return ColumnType(width=size, arrow=pa.bool_(), spark="boolean", finish=_booleans)
    arrow, spark = UNSIGNED_BIGINT if bits > 63 else BIGINT
    return ColumnType(width=size, arrow=arrow, spark=spark, finish=functools.partial(_bits, arrow=arrow, size=size))


def _integers(values: Values, arrow: pa.DataType, size: int, signed: bool) -> AnyArray:
    wide = np.empty(values.count, np.int64)
    rows_gather.little_endian_integers(values.buffer, values.starts, size, signed, wide)
    return _array(values, arrow, wide)


def _bits(values: Values, arrow: pa.DataType, size: int) -> AnyArray:
    wide = np.empty(values.count, np.int64)
    rows_gather.big_endian_integers(values.buffer, values.starts, size, wide)
    return _array(values, arrow, wide)


def _years(values: Values) -> AnyArray:
    wide = np.empty(values.count, np.int64)
    rows_gather.little_endian_integers(values.buffer, values.starts, 1, False, wide)
    return _array(values, pa.int32(), np.where(wide == 0, 0, wide + 1900))


def _floats(values: Values, arrow: pa.DataType, size: int) -> AnyArray:
    wide = np.empty(values.count, np.int64)
    rows_gather.little_endian_integers(values.buffer, values.starts, size, False, wide)
    narrow = wide if size == 8 else wide.astype(np.uint32)
    return pa.Array.from_buffers(arrow, values.count, [values.validity(), buffer_of(narrow)])


def _booleans(values: Values) -> AnyArray:
    wide = np.empty(values.count, np.int64)
    rows_gather.big_endian_integers(values.buffer, values.starts, 1, wide)
    data = buffer_of(np.packbits(wide != 0, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), values.count, [values.validity(), data])


def _array(values: Values, arrow: pa.DataType, wide: Int64s) -> AnyArray:
    """Returns `wide` as an array of type `arrow`. For decimal128, the 64 bits are an unsigned number."""
    if pa.types.is_decimal(arrow):
        words = np.zeros((values.count, 2), np.int64)
        words[:, 0] = wide
        return pa.Array.from_buffers(arrow, values.count, [values.validity(), buffer_of(words)])
    narrow = wide.astype(arrow.to_pandas_dtype(), copy=False)
    return pa.Array.from_buffers(arrow, values.count, [values.validity(), buffer_of(narrow)])
