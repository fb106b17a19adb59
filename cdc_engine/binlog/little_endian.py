"""Reads little-endian integers in numba kernels."""

from __future__ import annotations

import numba as nb
import numpy as np

from sluice.cdc_engine.binlog.compiled import Integer
from sluice.cdc_engine.contracts import Bytes


@nb.njit(inline="always")
def little_endian(buffer: Bytes, at: Integer, width: Integer) -> Integer:
    """Reads an unsigned little-endian integer of `width` bytes (at most 8) as int64. The caller ensures that the bytes are in
    the buffer.
    """
    value = np.int64(0)
    for index in range(width):
        value |= np.int64(buffer[at + index]) << np.int64(8 * index)
    return value
