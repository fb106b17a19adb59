"""Computes the SHA-256 digests of many values in one numba kernel call, so that the masking of a column needs no Python loop. Called by
`masks`.

The digest of a value equals hashlib.sha256(salt + value).hexdigest().
"""
# ruff: noqa: PLR0917 - a kernel takes each array as an argument, and numba has no keyword-only arguments

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np
import numpy.typing as npt

from sluice.cdc_engine.binlog.compiled import Integer, compiled
from sluice.cdc_engine.contracts import Bytes, Int64s

Words = npt.NDArray[np.uint32]
BLOCK_BYTES = 64
DIGEST_CHARS = 64
_LENGTH_BYTES = 8  # The bytes at the end of the last block that contain the number of hashed bits.
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)


def _first_primes(count: int) -> list[int]:
    found: list[int] = []
    candidate = 2
    while len(found) < count:
        if all(candidate % each for each in found):
            found.append(candidate)
        candidate += 1
    return found


def _root_bits(prime: int, power: int) -> int:
    """Returns the first 32 bits of the fraction of the prime's square root (`power` 2) or cube root (`power` 3)."""
    wanted = prime << (32 * power)
    low, high = 0, 1 << 40
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if middle**power <= wanted else (low, middle)
    return low & 0xFFFFFFFF


FIRST_STATE: Words = np.array([_root_bits(prime, 2) for prime in _first_primes(8)], np.uint32)
ROUNDS: Words = np.array([_root_bits(prime, 3) for prime in _first_primes(64)], np.uint32)


@nb.njit(inline="always")
def _rotated(word: Any, bits: Integer) -> Any:
    return np.uint32((word >> np.uint32(bits)) | (word << np.uint32(32 - bits)))


@compiled
def _mix(block: Bytes, state: Words, schedule: Words, rounds: Words) -> None:
    """Updates the SHA-256 state with one block of 64 bytes. `schedule`: scratch memory. `rounds`: the round constants."""
    for index in range(16):
        at = 4 * index
        schedule[index] = np.uint32(
            (np.uint32(block[at]) << np.uint32(24))
            | (np.uint32(block[at + 1]) << np.uint32(16))
            | (np.uint32(block[at + 2]) << np.uint32(8))
            | np.uint32(block[at + 3])
        )
    for index in range(16, 64):
        early, late = schedule[index - 15], schedule[index - 2]
        small = _rotated(early, 7) ^ _rotated(early, 18) ^ np.uint32(early >> np.uint32(3))
        large = _rotated(late, 17) ^ _rotated(late, 19) ^ np.uint32(late >> np.uint32(10))
        schedule[index] = np.uint32(schedule[index - 16] + small + schedule[index - 7] + large)
    a, b, c, d, e, f, g, h = state
    for index in range(64):
        chosen = np.uint32((e & f) ^ (~e & g))
        first = np.uint32(
            h + (_rotated(e, 6) ^ _rotated(e, 11) ^ _rotated(e, 25)) + chosen + rounds[index] + schedule[index]
        )
        most = np.uint32((a & b) ^ (a & c) ^ (b & c))
        second = np.uint32((_rotated(a, 2) ^ _rotated(a, 13) ^ _rotated(a, 22)) + most)
        h, g, f, e, d, c, b, a = g, f, e, np.uint32(d + first), c, b, a, np.uint32(first + second)
    state[0] += a
    state[1] += b
    state[2] += c
    state[3] += d
    state[4] += e
    state[5] += f
    state[6] += g
    state[7] += h


@compiled
def _digests(
    data: Bytes, offsets: Int64s, null: npt.NDArray[np.bool_], salt: Bytes, first: Words, rounds: Words, digits: Bytes, out: Bytes
) -> None:  # fmt: skip
    """Hashes each value that is not NULL, with `salt` before it, and writes the digests to `out`, back to back. `first`, `rounds`: the
    initial state and the round constants of SHA-256. `digits`: the characters of hexadecimal digits.
    """
    block, schedule, state = np.empty(BLOCK_BYTES, np.uint8), np.empty(64, np.uint32), np.empty(8, np.uint32)
    written = np.int64(0)
    for row in range(len(null)):
        if null[row]:
            continue
        state[:] = first
        size = len(salt) + offsets[row + 1] - offsets[row]
        begin = offsets[row] - len(salt)
        whole = ((size + _LENGTH_BYTES) // BLOCK_BYTES + 1) * BLOCK_BYTES
        for at in range(whole):
            index = at % BLOCK_BYTES
            if at < len(salt):
                block[index] = salt[at]
            elif at < size:
                block[index] = data[begin + at]
            elif at == size:
                block[index] = 0x80
            elif at < whole - _LENGTH_BYTES:
                block[index] = 0
            else:
                block[index] = ((size * 8) >> (8 * (whole - 1 - at))) & 0xFF
            if index == BLOCK_BYTES - 1:
                _mix(block, state, schedule, rounds)
        for word in range(8):
            for digit in range(8):
                out[written] = digits[(state[word] >> np.uint32(28 - 4 * digit)) & np.uint32(15)]
                written += 1


def digests(data: Bytes, offsets: Int64s, null: npt.NDArray[np.bool_], salt: bytes) -> Bytes:
    """Returns the digests (64 hexadecimal characters each) of the values data[offsets[i] : offsets[i + 1]] that are not NULL, back to
    back.
    """
    out = np.empty(DIGEST_CHARS * int((~null).sum()), np.uint8)
    _digests(data, offsets, null, np.frombuffer(salt, np.uint8), FIRST_STATE, ROUNDS, _HEX, out)
    return out
