"""Kernels that copy located values out of a block's buffer into buffers of their own. Called by the column types.

`starts` (int64, one a row, -1 for NULL) and `sizes` (int64, bytes) are what `rows_locate` wrote; both lie within the buffer. NULLs come
out as zero or as nothing. No kernel checks values: that is for the column types.
"""
# ruff: noqa: PLR0917 - a kernel takes every array it touches by name

from __future__ import annotations

from typing import Any

import numpy as np

from cdc_engine.binlog.compiled import Integer, compiled
from cdc_engine.contracts import Bytes, Int64s


@compiled
def little_endian_integers(buffer: Bytes, starts: Int64s, size: Integer, signed: bool, out: Int64s) -> None:
    """Integers of 1 to 8 bytes, lowest first, as int64; unsigned ones of 8 bytes keep their bits."""
    shift = np.int64(64 - 8 * size)
    for row in range(starts.shape[0]):
        at, value = starts[row], np.int64(0)
        if at >= 0:
            for index in range(size):
                value |= np.int64(buffer[at + index]) << np.int64(8 * index)
            if signed:
                value = (value << shift) >> shift
        out[row] = value


@compiled
def big_endian_integers(buffer: Bytes, starts: Int64s, size: Integer, out: Int64s) -> None:
    """Unsigned integers of 1 to 8 bytes, highest first, as int64; those of 8 bytes keep their bits."""
    for row in range(starts.shape[0]):
        at, value = starts[row], np.int64(0)
        if at >= 0:
            for index in range(size):
                value = value << np.int64(8) | np.int64(buffer[at + index])
        out[row] = value


@compiled
def bytes_total(sizes: Int64s) -> Integer:
    total = np.int64(0)
    for row in range(sizes.shape[0]):
        total += sizes[row]
    return total


@compiled
def copy_bytes(buffer: Bytes, starts: Int64s, sizes: Int64s, offsets: Any, out: Bytes) -> Integer:
    """Copies the values back to back, writes offsets (int32, rows + 1), answers the OR of all bytes: below 128 all of them are ASCII."""
    used, seen = np.int64(0), np.uint8(0)
    offsets[0] = 0
    for row in range(starts.shape[0]):
        at = starts[row]
        for index in range(sizes[row]):
            byte = buffer[at + index]
            out[used + index] = byte
            seen |= byte
        used += sizes[row]
        offsets[row + 1] = used
    return np.int64(seen)


@compiled
def copy_padded(buffer: Bytes, starts: Int64s, sizes: Int64s, width: Integer, offsets: Any, out: Bytes) -> None:
    """As `copy_bytes`, each value filled with zero bytes up to `width`; `out` starts as zeros and has room for `width` bytes a row."""
    used = np.int64(0)
    offsets[0] = 0
    for row in range(starts.shape[0]):
        if starts[row] >= 0:
            for index in range(sizes[row]):
                out[used + index] = buffer[starts[row] + index]
            used += max(width, sizes[row])
        offsets[row + 1] = used
