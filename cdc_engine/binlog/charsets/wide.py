"""Transcodes text of multi-byte charsets to UTF-8 in a numba kernel. Called by `column_types.transcoding`.

The kernel computes UTF-16 and UTF-32 characters from their bytes. For other charsets, it reads tables with the code points of single bytes,
of pairs of bytes, and of pairs after 0x8F (ujis, eucjpms). The tables are made with the charset's codec when the first text arrives. The
kernel cannot decode four-byte characters of gb18030, nor invalid bytes. If a column contains such bytes, the caller decodes the column with
the charset's codec.
"""
# ruff: noqa: PLR0917 - numba has no keyword-only arguments

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from sluice.cdc_engine.binlog.compiled import Integer, kernel
from sluice.cdc_engine.contracts import Bytes, Int32s, Int64s

# The maximum number of bytes of UTF-8 for one byte of text. For example, one byte of sjis can become a character of three bytes.
UTF8_BYTES_A_BYTE = 3
# Codec → (bytes per unit, whether it is little-endian)
UNITS = {"utf_16_be": (2, False), "utf_16_le": (2, True), "utf_32_be": (4, False)}
# The value in the tables for bytes that are not a character. It also stands for a character that the kernel does not decode: a character
# beyond U+FFFF, or a character that becomes several code points.
NOT_DEFINED = -1
THIRD = 0x8F  # First byte of the three-byte characters of ujis and eucjpms.
FIRST_TRAIL = 0x30
SURROGATE, LOW_SURROGATE, AFTER_SURROGATES, POINTS = 0xD800, 0xDC00, 0xE000, 0x110000
NO_TABLE = np.empty(0, np.int32)


class CodePoints(NamedTuple):
    """A charset's code points. `alone` (256) is indexed by a character's only byte. `pairs` (65536) is indexed by the two bytes of a
    character. `triples` (65536) is indexed by the last two bytes of a three-byte character, whose first byte is THIRD (0x8F).
    """

    alone: Int32s
    pairs: Int32s
    triples: Int32s


@functools.cache
def singles(codec: str) -> Int32s:
    """Returns the code point of each of the 256 bytes. The value is NOT_DEFINED for a byte that is not a character by itself, for example
    because it begins a longer character.
    """
    return np.array([_code_point(bytes([byte]), codec) for byte in range(256)], np.int32)


@functools.cache
def tables(codec: str) -> CodePoints:
    """Returns the code point tables of a codec; empty tables for UTF-16 and UTF-32."""
    if codec in UNITS:
        return CodePoints(NO_TABLE, NO_TABLE, NO_TABLE)
    alone = singles(codec)
    leads = np.flatnonzero(alone == NOT_DEFINED).tolist()
    third = range(0xA1, 0xFF) if THIRD in leads else ()
    return CodePoints(alone, _pairs(codec, b"", leads), _pairs(codec, bytes([THIRD]), third))


def _pairs(codec: str, before: bytes, leads: range | list[int] | tuple[()]) -> Int32s:
    found = np.full(1 << 16, NOT_DEFINED, np.int32)
    for lead in leads:
        for trail in range(FIRST_TRAIL, 256):
            found[lead << 8 | trail] = _code_point(before + bytes([lead, trail]), codec)
    return found


def _code_point(octets: bytes, codec: str) -> int:
    try:
        text = octets.decode(codec)
    except UnicodeDecodeError:
        return NOT_DEFINED
    return ord(text) if len(text) == 1 and text < "\U00010000" else NOT_DEFINED


@kernel
def transcode_wide(
    buffer: Bytes,
    starts: Int64s,
    sizes: Int64s,
    unit: Integer,
    lowest_first: bool,
    tables: CodePoints,
    offsets: Int32s,
    out: Bytes,
) -> Integer:
    """Decodes the values and writes them to `out` in UTF-8, back to back. Writes their ends to `offsets`. `unit`: bytes of a UTF-16 or
    UTF-32 unit; 0 for charsets that `tables` decode. `lowest_first`: whether the units are little-endian.

    Returns the first row that cannot be decoded, or -1. `out` must have at least UTF8_BYTES_A_BYTE times the values' bytes.
    """
    used = np.int64(0)
    offsets[0] = 0
    for row in range(starts.shape[0]):
        at, end = starts[row], starts[row] + sizes[row]
        while at < end:
            if unit:
                point, size = character_of_units(buffer, at, end, unit, lowest_first)
            else:
                point, size = character_of_tables(buffer, at, end, tables)
            if size == 0:
                return row
            at += size
            used = put_character(out, used, point)
        offsets[row + 1] = used
    return -1


@kernel
def character_of_units(
    buffer: Bytes, at: Integer, end: Integer, unit: Integer, lowest_first: bool
) -> tuple[Integer, Integer]:
    """Returns (code point, number of bytes) of the UTF-16 or UTF-32 character at `at`. Returns (0, 0) if the bytes are not a character."""
    if at + unit > end:
        return np.int64(0), np.int64(0)
    point = number_of(buffer, at, unit, lowest_first)
    if point < SURROGATE or AFTER_SURROGATES <= point < POINTS:
        return point, unit
    if unit == 2 and point < LOW_SURROGATE and at + 4 <= end:
        low = number_of(buffer, at + 2, unit, lowest_first)
        if LOW_SURROGATE <= low < AFTER_SURROGATES:
            return ((point - SURROGATE) << 10) + (low - LOW_SURROGATE) + 0x10000, np.int64(4)
    return np.int64(0), np.int64(0)


@kernel
def number_of(buffer: Bytes, at: Integer, unit: Integer, lowest_first: bool) -> Integer:
    number = np.int64(0)
    for index in range(unit):
        offset = at + unit - 1 - index if lowest_first else at + index
        number = number << 8 | np.int64(buffer[offset])
    return number


@kernel
def character_of_tables(buffer: Bytes, at: Integer, end: Integer, tables: CodePoints) -> tuple[Integer, Integer]:
    """Returns (code point, number of bytes) of the character at `at`. Returns (0, 0) if the tables do not have the character; the caller
    then decodes the column with the charset's codec.
    """
    alone, pairs, triples = tables
    first = np.int64(buffer[at])
    if alone[first] >= 0:
        return np.int64(alone[first]), np.int64(1)
    if at + 1 < end:
        second = np.int64(buffer[at + 1])
        point = np.int64(pairs[first << 8 | second])
        if point >= 0:
            return point, np.int64(2)
        if first == THIRD and at + 2 < end:
            point = np.int64(triples[second << 8 | np.int64(buffer[at + 2])])
            if point >= 0:
                return point, np.int64(3)
    return np.int64(0), np.int64(0)


@kernel
def put_character(out: Bytes, used: Integer, point: Integer) -> Integer:
    if point < 0x80:
        out[used] = point
        return used + 1
    if point < 0x800:
        out[used], out[used + 1] = 0xC0 | point >> 6, 0x80 | point & 63
        return used + 2
    if point < 0x10000:
        out[used], out[used + 1], out[used + 2] = 0xE0 | point >> 12, 0x80 | point >> 6 & 63, 0x80 | point & 63
        return used + 3
    out[used], out[used + 1] = 0xF0 | point >> 18, 0x80 | point >> 12 & 63
    out[used + 2], out[used + 3] = 0x80 | point >> 6 & 63, 0x80 | point & 63
    return used + 4
