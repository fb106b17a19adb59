"""Kernels that copy values out of a block's buffer into separate buffers. Called by the column types, `entries.texts` and
`parser.text_rows`.

`rows.locate` finds the values: it writes their offsets to `starts` (int64, one per row, -1 for NULL) and their sizes to `sizes` (int64,
bytes), and ensures that all values are within the buffer. A NULL becomes the number zero or an empty value. The column types check whether
values are valid; the kernels do not.
"""
# ruff: noqa: PLR0917 - a kernel takes each array as an argument

from __future__ import annotations

from typing import Any

import numpy as np

from sluice.cdc_engine.binlog.compiled import Integer, compiled
from sluice.cdc_engine.binlog.memory import WORD_BYTES, any_high, copy_memory, swapped, word_at
from sluice.cdc_engine.contracts import Bytes, Int64s


@compiled
def little_endian_integers(buffer: Bytes, starts: Int64s, size: Integer, signed: bool, out: Int64s) -> None:
    """Reads little-endian integers of `size` (1 to 8) bytes into `out`; NULL becomes 0. Unsigned 8-byte integers keep their bits, so
    integers from 2**63 on are negative in `out`.
    """
    shift, last = np.uint64(64 - 8 * size), buffer.shape[0] - WORD_BYTES
    for row in range(starts.shape[0]):
        at, value = starts[row], np.uint64(0)
        if at >= 0:
            if at <= last:
                value = word_at(buffer, at) << shift
            else:
                for index in range(size):
                    value |= np.uint64(buffer[at + index]) << np.uint64(8 * index)
                value <<= shift
        out[row] = np.int64(value) >> np.int64(shift) if signed else np.int64(value >> shift)


@compiled
def big_endian_integers(buffer: Bytes, starts: Int64s, size: Integer, out: Int64s) -> None:
    """Reads unsigned big-endian integers of `size` (1 to 8) bytes into `out`; NULL becomes 0. 8-byte integers keep their bits, so integers
    from 2**63 on are negative in `out`.
    """
    shift, last = np.uint64(64 - 8 * size), buffer.shape[0] - WORD_BYTES
    for row in range(starts.shape[0]):
        at, value = starts[row], np.uint64(0)
        if 0 <= at <= last:
            value = swapped(word_at(buffer, at)) >> shift
        elif at >= 0:
            for index in range(size):
                value = value << np.uint64(8) | np.uint64(buffer[at + index])
        out[row] = np.int64(value)


@compiled
def bytes_total(sizes: Int64s) -> Integer:
    total = np.int64(0)
    for row in range(sizes.shape[0]):
        total += sizes[row]
    return total


@compiled
def copy_bytes(buffer: Bytes, starts: Int64s, sizes: Int64s, offsets: Any, out: Bytes) -> bool:
    """Copies the values to `out` back to back and writes their `offsets` (int32, rows + 1). Returns whether any byte is not ASCII."""
    used = np.int64(0)
    offsets[0] = 0
    for row in range(starts.shape[0]):
        if sizes[row]:
            copy_memory(out, used, buffer, starts[row], sizes[row])
        used += sizes[row]
        offsets[row + 1] = used
    return any_high(out, used)


@compiled
def copy_padded(buffer: Bytes, starts: Int64s, sizes: Int64s, width: Integer, offsets: Any, out: Bytes) -> None:
    """Copies the values that are not NULL to `out` back to back, each padded with zero bytes to `width` bytes, and writes their `offsets`
    (int32, rows + 1). `out` must have `width` zero bytes per row.
    """
    used = np.int64(0)
    offsets[0] = 0
    for row in range(starts.shape[0]):
        if starts[row] >= 0:
            copy_memory(out, used, buffer, starts[row], sizes[row])
            used += max(width, sizes[row])
        offsets[row + 1] = used
