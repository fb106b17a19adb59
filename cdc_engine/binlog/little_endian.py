"""Reads integers of binlog events in kernels."""

from __future__ import annotations

import numba as nb
import numpy as np

from sluice.cdc_engine.binlog.compiled import Integer
from sluice.cdc_engine.contracts import Bytes


@nb.njit(inline="always")
def little_endian(buffer: Bytes, at: Integer, width: Integer) -> Integer:
    """Reads an unsigned little-endian integer of up to eight bytes as int64. The caller has checked that the bytes exist."""
    value = np.int64(0)
    for index in range(width):
        value |= np.int64(buffer[at + index]) << np.int64(8 * index)
    return value
