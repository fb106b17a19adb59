"""Kernels that compute the sizes of protobuf fields and write them into a buffer of the caller."""

from __future__ import annotations

import numba as nb
import numpy as np

from sluice.cdc_engine.binlog.compiled import Integer, kernel
from sluice.cdc_engine.contracts import Bytes, Int64s


@nb.njit(inline="always")
def varint_size(value: Integer) -> Integer:
    """Returns the number of bytes of a non-negative number as a varint."""
    size = 1
    while value > 0x7F:
        value >>= 7
        size += 1
    return size


@nb.njit(inline="always")
def put_varint(out: Bytes, at: Integer, value: Integer) -> Integer:
    """Writes a non-negative number as a varint. Returns the offset after the varint."""
    while value > 0x7F:
        out[at] = value & 0x7F | 0x80
        value >>= 7
        at += 1
    out[at] = value
    return at + 1


@nb.njit(inline="always")
def field_size(value: Integer) -> Integer:
    """Returns the number of bytes of a number field whose field number is below 16. Returns 0 for the value 0, because protobuf
    omits it.
    """
    return 0 if value == 0 else 1 + varint_size(value)


@nb.njit(inline="always")
def put_field(out: Bytes, at: Integer, key: Integer, value: Integer) -> Integer:
    if value == 0:
        return at
    out[at] = key
    return put_varint(out, at + 1, value)


@nb.njit(inline="always")
def put_bytes(out: Bytes, at: Integer, source: Bytes, first: Integer, size: Integer) -> Integer:
    for index in range(size):
        out[at + index] = source[first + index]
    return at + size


@kernel
def gathered_size(sizes: Int64s) -> Integer:
    """Returns the total bytes of entries of the given sizes, each encoded as field `messages` (2) of a Messages packet."""
    total = np.int64(0)
    for size in sizes:
        total += 1 + varint_size(size) + size
    return total


@kernel
def gather_entries(source: Bytes, starts: Int64s, sizes: Int64s, out: Bytes) -> None:
    """Writes each entry as one field `messages` (2) of a Messages packet, in order."""
    at = np.int64(0)
    for index in range(starts.shape[0]):
        out[at] = 0x12
        at = put_varint(out, at + 1, sizes[index])
        at = put_bytes(out, at, source, starts[index], sizes[index])
