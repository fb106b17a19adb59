"""Computes the CRC32 of binlog events, with the same result as zlib's crc32, which MySQL calls. Called by `kernel`.

If the processor has carry-less multiplication, `carryless` processes most bytes (14 GB/s). The remaining bytes, and all bytes on other
processors, are processed with tables, sixteen bytes per step ("slicing-by-16": 2 GB/s). There is one table for each of the sixteen bytes of
a step, so the lookups do not wait for each other.

The kernel does not call zlib. A kernel that contains a pointer to a function of zlib cannot be cached on disk by numba.
"""

from __future__ import annotations

import numba as nb
import numpy as np
import numpy.typing as npt

from sluice.cdc_engine.binlog.compiled import kernel
from sluice.cdc_engine.contracts import Bytes
from sluice.cdc_engine.parser.scan.carryless import AVAILABLE, FOLD_BYTES_MIN, UNIT_BYTES, folded

POLYNOMIAL = 0xEDB88320  # CRC-32 of IEEE 802.3, bits reversed
SLICES = 16


def _make_tables() -> npt.NDArray[np.uint32]:
    tables = np.zeros((SLICES, 256), np.uint32)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (POLYNOMIAL if value & 1 else 0)
        tables[0, byte] = value
    for slice_ in range(1, SLICES):
        before = tables[slice_ - 1]
        tables[slice_] = (before >> np.uint32(8)) ^ tables[0][before & np.uint32(0xFF)]
    return tables


TABLES = _make_tables()


@nb.njit(inline="always")
def _word(buffer: Bytes, at: int) -> np.uint32:
    """Reads a little-endian integer of four bytes. LLVM compiles this to one load instruction."""
    return np.uint32(
        np.uint32(buffer[at])
        | np.uint32(buffer[at + 1]) << np.uint32(8)
        | np.uint32(buffer[at + 2]) << np.uint32(16)
        | np.uint32(buffer[at + 3]) << np.uint32(24)
    )


@nb.njit(inline="always")
def _fold(word: np.uint32, first: int) -> np.uint32:
    """Looks up the four bytes of a word in four tables, and returns the XOR of the results. `first` is the index of the table for the
    lowest byte. For each next byte, the index is lower by one.
    """
    return np.uint32(
        TABLES[first, word & np.uint32(0xFF)]
        ^ TABLES[first - 1, (word >> np.uint32(8)) & np.uint32(0xFF)]
        ^ TABLES[first - 2, (word >> np.uint32(16)) & np.uint32(0xFF)]
        ^ TABLES[first - 3, word >> np.uint32(24)]
    )


@kernel
def crc32(buffer: Bytes, begin: int, end: int) -> int:
    """Returns the CRC32 of buffer[begin:end]. The caller ensures that these bytes are in the buffer."""
    crc = np.uint32(0xFFFFFFFF)
    at = begin
    if AVAILABLE and end - begin >= FOLD_BYTES_MIN:
        units = (end - begin) // UNIT_BYTES
        lower, upper = folded(buffer, begin, units, crc)
        crc = np.uint32(
            _fold(np.uint32(lower), 15)
            ^ _fold(np.uint32(lower >> np.uint64(32)), 11)
            ^ _fold(np.uint32(upper), 7)
            ^ _fold(np.uint32(upper >> np.uint64(32)), 3)
        )
        at = begin + units * UNIT_BYTES
    while at + SLICES <= end:
        crc = np.uint32(
            _fold(_word(buffer, at) ^ crc, 15)
            ^ _fold(_word(buffer, at + 4), 11)
            ^ _fold(_word(buffer, at + 8), 7)
            ^ _fold(_word(buffer, at + 12), 3)
        )
        at += SLICES
    while at < end:
        crc = np.uint32(TABLES[0, (crc ^ np.uint32(buffer[at])) & np.uint32(0xFF)] ^ (crc >> np.uint32(8)))
        at += 1
    return int(crc ^ np.uint32(0xFFFFFFFF))
