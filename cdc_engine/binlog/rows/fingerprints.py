"""Computes 128-bit fingerprints of row keys. Equal keys have equal fingerprints. It is practically impossible that different keys have
equal fingerprints.

The fingerprints are computed from decoded values, because the lake compares keys by their decoded values. The computation begins with
random bits of this process, so that nobody can choose keys that collide. So fingerprints must never leave the process.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.cdc_engine.binlog.compiled import kernel
from sluice.cdc_engine.contracts import Bytes, Int64s

Words = npt.NDArray[np.uint64]
LANES = 2
_SEEDS = np.array([secrets.randbits(64) for _ in range(LANES)], np.uint64)
_FACTORS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F], np.uint64)
_FINAL = np.uint64(0xD6E8FEB86659FD93)
_HALF, _EIGHT, _ZERO = np.uint64(32), np.uint64(8), np.uint64(0)


def fingerprints(columns: Sequence[Any]) -> Int64s:
    """Returns the fingerprint of each row's key, as two int64 words (shape: 2, rows). `columns`: the Arrow arrays of the key columns. Two
    keys with NULL in the same columns are equal if their other values are equal.
    """
    lanes = np.repeat(_SEEDS.reshape(LANES, 1), len(columns[0]), axis=1)
    for column in columns:
        mix_words(column.is_null().to_numpy(zero_copy_only=False).astype(np.uint64).reshape(-1, 1), lanes, _FACTORS)
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            _, offsets, data = column.buffers()
            ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
            mix_bytes(np.frombuffer(data or b"\0", np.uint8), ends.astype(np.int64), lanes, _FACTORS)
        else:
            mix_words(_words(column), lanes, _FACTORS)
    return lanes.view(np.int64)


def _words(column: Any) -> Words:
    """Returns the values of a fixed-width type as 64-bit words (shape: values, words per value). Equal values have equal words."""
    if pa.types.is_decimal128(column.type):
        pairs = np.frombuffer(column.buffers()[1], np.uint64).reshape(-1, 2)
        return np.ascontiguousarray(pairs[column.offset : column.offset + len(column)])
    if pa.types.is_floating(column.type):
        floats: Any = pc.fill_null(column.cast(pa.float64()), 0.0)
        # The addition turns -0.0 into 0.0, because the two are equal as keys.
        bits: Words = (floats.to_numpy() + 0.0).view(np.uint64)
        return bits.reshape(-1, 1)
    narrow = column.cast(pa.int32()) if pa.types.is_date32(column.type) else column
    whole: Any = pc.fill_null(narrow.cast(pa.int64()), 0)
    words: Words = np.ascontiguousarray(whole.to_numpy()).view(np.uint64)
    return words.reshape(-1, 1)


@kernel
def _mixed(lane: np.uint64, word: np.uint64, factor: np.uint64) -> np.uint64:
    """Mixes a word into a lane, which is one of the two 64-bit words of a fingerprint. For a given lane, different words have different
    results, so keys that consist of one word never collide.
    """
    lane = (lane ^ word) * factor
    lane ^= lane >> _HALF
    lane *= _FINAL
    lane ^= lane >> _HALF
    return lane


@kernel
def mix_words(words: Words, lanes: Words, factors: Words) -> None:
    """Mixes the words of each row (shape of `words`: rows, words per row) into the two lanes of the row (shape of `lanes`: 2, rows)."""
    for lane in range(LANES):
        for row in range(words.shape[0]):
            for index in range(words.shape[1]):
                lanes[lane, row] = _mixed(lanes[lane, row], words[row, index], factors[lane])


@kernel
def mix_bytes(data: Bytes, ends: Int64s, lanes: Words, factors: Words) -> None:
    """Mixes the length and the bytes of each row into the two lanes of the row (shape of `lanes`: 2, rows). The bytes of a row are
    data[ends[row] : ends[row + 1]].
    """
    for row in range(ends.shape[0] - 1):
        at, end = ends[row], ends[row + 1]
        length = np.uint64(end - at)
        for lane in range(LANES):
            lanes[lane, row] = _mixed(lanes[lane, row], length, factors[lane])
        while at < end:
            word, shift = _ZERO, _ZERO
            for index in range(at, min(at + 8, end)):
                word |= np.uint64(data[index]) << shift
                shift += _EIGHT
            for lane in range(LANES):
                lanes[lane, row] = _mixed(lanes[lane, row], word, factors[lane])
            at += 8
