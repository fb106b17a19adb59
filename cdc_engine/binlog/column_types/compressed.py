"""Decodes MariaDB's COMPRESSED columns: a VARCHAR or BLOB value whose first byte describes the compression.

The first byte (MariaDB's field.cc) is 0 if the value is not compressed. Otherwise bit 0x80 of the first byte is set. Bit 0x08 is
set if the deflated bytes have no zlib header. The low three bits are the number of bytes of the uncompressed length (big-endian), which
follows the first byte. An empty value has no first byte.
"""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Callable

import numpy as np

from sluice.cdc_engine.binlog.column_types.entry import (
    REGISTER,
    AnyArray,
    ColumnType,
    ValueRefusedError,
    Values,
    column_type,
)
from sluice.cdc_engine.binlog.type_codes import TypeCode
from sluice.cdc_engine.contracts import Column

PLAIN = {TypeCode.VARCHAR_COMPRESSED: TypeCode.VARCHAR, TypeCode.BLOB_COMPRESSED: TypeCode.BLOB}
DEFLATED, WITHOUT_HEADER, LENGTH_BITS = 0x80, 0x08, 0x07


@column_type(*PLAIN)
def compressed(column: Column) -> ColumnType:
    code = PLAIN[TypeCode(column.type_code)]
    found = REGISTER[code](dataclasses.replace(column, type_code=code))
    return dataclasses.replace(found, finish=functools.partial(_finish, finish=found.finish))


def _finish(values: Values, finish: Callable[[Values], AnyArray]) -> AnyArray:
    """Decompresses the values, and decodes the results with `finish`. This is a Python loop over rows, because numba cannot call zlib and
    COMPRESSED columns are rare.
    """
    plain = [b"" if values.starts[row] < 0 else _inflated(values.value(row), row) for row in range(values.count)]
    sizes = np.array([len(each) for each in plain], np.int64)
    starts = np.where(values.starts < 0, -1, np.cumsum(sizes) - sizes).astype(np.int64)
    return finish(Values(np.frombuffer(b"".join(plain) or b"\0", np.uint8), starts, sizes))


def _inflated(value: bytes, row: int) -> bytes:
    if not value or value[0] == 0:
        return value[1:]
    length_bytes = value[0] & LENGTH_BITS
    length = int.from_bytes(value[1 : 1 + length_bytes])
    inflater = zlib.decompressobj(-zlib.MAX_WBITS if value[0] & WITHOUT_HEADER else zlib.MAX_WBITS)
    try:
        plain = inflater.decompress(value[1 + length_bytes :], length) if value[0] & DEFLATED and length else b""
    except zlib.error as error:
        raise ValueRefusedError(row, f"cannot be decompressed: {error}") from None
    if not plain or len(plain) != length or inflater.unconsumed_tail:
        raise ValueRefusedError(row, "does not have the decompressed length that the value states")
    return plain
