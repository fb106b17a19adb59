"""Kernels that print the scalars of a binary JSON document. Called by `print_documents` and `trees`.

Each kernel gets the offset of a value in `buffer`, the end of the document, and the offset in `out` at which the text begins. The kernel
checks that the value is within the document and that `out` has enough space. It returns the offset after the text, or a negative status
(`statuses`).
"""
# ruff: noqa: PLR0917 - a kernel takes each array as an argument

from __future__ import annotations

import numpy as np

from sluice.cdc_engine.binlog.compiled import Integer, kernel
from sluice.cdc_engine.binlog.documents import jsonb, statuses
from sluice.cdc_engine.binlog.documents.jsonb import BASE64_LINE, DOUBLE, LITERAL, OPAQUE, STRING, UINT64
from sluice.cdc_engine.binlog.documents.print_numbers import (
    MOMENT_BYTES,
    NUMBER_ROOM,
    QUOTE,
    print_decimal,
    print_digits,
    print_double,
    print_integer,
    print_moment,
)
from sluice.cdc_engine.binlog.little_endian import little_endian
from sluice.cdc_engine.binlog.type_codes import TypeCode
from sluice.cdc_engine.contracts import Bytes

TRUNCATED, ENDLESS, KIND_UNKNOWN, ROOM = statuses.TRUNCATED, statuses.ENDLESS, statuses.KIND, statuses.ROOM
LITERAL_UNKNOWN = statuses.LITERAL
ESCAPED_BYTES_MAX = len(r"\u0000")  # The maximum number of bytes of the escape for one byte of a string.
BACKSLASH, UNICODE, NEWLINE = ord("\\"), ord("u"), ord("n")
# A length has 7 bits per byte, in at most five bytes. The bits of the fifth byte are shifted left by this number.
LENGTH_SHIFT_MAX = 28
# Indexed by the kind of a value: the number of bytes of a value, or 0 if the kind is not a number.
NUMBER_BYTES = np.array([0, 0, 0, 0, 0, 2, 2, 4, 4, 8, 8, 8], np.int64)
# Indexed by kind: a shift left and then right by this number of bits extends the sign of INT16 and INT32.
SIGN_SHIFT = np.array([0, 0, 0, 0, 0, 48, 0, 32, 0, 0, 0, 0], np.int64)
DECIMAL = int(TypeCode.NEWDECIMAL)


def _characters(text: str) -> Bytes:
    return np.frombuffer(text.encode(), np.uint8)


def _among(*codes: TypeCode) -> np.typing.NDArray[np.bool_]:
    """Returns a table that says for each type code whether it is among `codes` (bool, 256)."""
    return np.isin(np.arange(256), codes)


HAS_DATE = _among(TypeCode.DATE, TypeCode.DATETIME, TypeCode.TIMESTAMP)
HAS_CLOCK = _among(TypeCode.TIME, TypeCode.DATETIME, TypeCode.TIMESTAMP)
HEX, BASE64 = _characters("0123456789abcdef"), _characters(jsonb.BASE64)
LITERALS = _characters("null true false")
LITERAL_STARTS, LITERAL_ENDS = np.array([0, 5, 10], np.int64), np.array([4, 9, 15], np.int64)
PREFIX = _characters('"base64:type')
# Indexed by byte: the character that follows the backslash in the byte's escape, or 0 if the byte is not escaped.
ESCAPES = np.array([ord(jsonb.ESCAPES.get(chr(byte), "\0\0")[1]) for byte in range(256)], np.uint8)


@kernel
def print_scalar(buffer: Bytes, kind: Integer, at: Integer, end: Integer, out: Bytes, used: Integer) -> Integer:
    """Writes a value of any kind that is neither an object nor an array."""
    if kind == LITERAL:
        return print_literal(buffer, at, end, out, used)
    if kind == STRING:
        return print_string(buffer, at, end, out, used)
    if kind == OPAQUE:
        return print_opaque(buffer, at, end, out, used)
    if kind >= NUMBER_BYTES.shape[0]:
        return KIND_UNKNOWN
    size = NUMBER_BYTES[kind]
    if at + size > end:
        return TRUNCATED
    if used + NUMBER_ROOM > out.shape[0]:
        return ROOM
    value = little_endian(buffer, at, size)
    if kind == DOUBLE:
        return print_double(out, used, value)
    value = (value << SIGN_SHIFT[kind]) >> SIGN_SHIFT[kind]
    return print_integer(out, used, value, kind != UINT64)


@kernel
def print_literal(buffer: Bytes, at: Integer, end: Integer, out: Bytes, used: Integer) -> Integer:
    if at >= end:
        return TRUNCATED
    code = np.int64(buffer[at])
    if code >= LITERAL_STARTS.shape[0]:
        return LITERAL_UNKNOWN
    return print_plain(LITERALS, LITERAL_STARTS[code], LITERAL_ENDS[code], out, used)


@kernel
def print_plain(characters: Bytes, start: Integer, end: Integer, out: Bytes, used: Integer) -> Integer:
    if used + end - start > out.shape[0]:
        return ROOM
    for index in range(start, end):
        out[used] = characters[index]
        used += 1
    return used


@kernel
def print_string(buffer: Bytes, at: Integer, end: Integer, out: Bytes, used: Integer) -> Integer:
    start, size = sized(buffer, at, end)
    return print_quoted(buffer, start, size, out, used) if start >= 0 else start


@kernel
def print_opaque(buffer: Bytes, at: Integer, end: Integer, out: Bytes, used: Integer) -> Integer:
    """Writes an opaque value, which consists of a column's type code, a length and a value of that type."""
    if at >= end:
        return TRUNCATED
    code = np.int64(buffer[at])
    start, size = sized(buffer, at + 1, end)
    if start < 0:
        return start
    if used + NUMBER_ROOM > out.shape[0]:
        return ROOM
    if code == DECIMAL:
        return print_decimal(buffer, start, size, out, used)
    if HAS_DATE[code] or HAS_CLOCK[code]:
        if size != MOMENT_BYTES:
            return TRUNCATED
        return print_moment(buffer, start, HAS_DATE[code], HAS_CLOCK[code], out, used)
    return print_base64(buffer, code, start, size, out, used)


@kernel
def sized(buffer: Bytes, at: Integer, end: Integer) -> tuple[Integer, Integer]:
    """Reads the length at `at`. Returns (start, size) of the value after the length. On failure, a negative status replaces the start."""
    size, shift = np.int64(0), np.int64(0)
    while at < end:
        byte = np.int64(buffer[at])
        size |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return (at, size) if at + size <= end else (np.int64(TRUNCATED), size)
        if shift > LENGTH_SHIFT_MAX:
            return np.int64(ENDLESS), size
    return np.int64(TRUNCATED), size


@kernel
def print_quoted(buffer: Bytes, start: Integer, size: Integer, out: Bytes, used: Integer) -> Integer:
    """Writes `size` bytes of text as a JSON string with the server's escapes."""
    if used + ESCAPED_BYTES_MAX * size + 2 > out.shape[0]:
        return ROOM
    out[used] = QUOTE
    used += 1
    for index in range(start, start + size):
        byte = buffer[index]
        escape = ESCAPES[byte]
        if escape == 0:
            out[used] = byte
            used += 1
            continue
        out[used], out[used + 1] = BACKSLASH, escape
        used += 2
        if escape == UNICODE:
            out[used], out[used + 1], out[used + 2], out[used + 3] = 48, 48, HEX[byte >> 4], HEX[byte & 15]
            used += 4
    out[used] = QUOTE
    return used + 1


@kernel
def print_base64(buffer: Bytes, code: Integer, start: Integer, size: Integer, out: Bytes, used: Integer) -> Integer:
    """Writes an opaque value as the server does: the string "base64:type<code>:" with the value in base64 and escaped line breaks."""
    if used + NUMBER_ROOM + size * 2 > out.shape[0]:
        return ROOM
    used = print_plain(PREFIX, 0, PREFIX.shape[0], out, used)
    used = print_digits(out, used, np.uint64(code), 1 + (code >= 10) + (code >= 100))
    out[used] = ord(":")
    used += 1
    for index in range(0, size, 3):
        if index and index % (BASE64_LINE // 4 * 3) == 0:
            out[used], out[used + 1] = BACKSLASH, NEWLINE
            used += 2
        there = min(np.int64(3), size - index)
        three = np.int64(0)
        for digit in range(3):
            three = three << 8 | (np.int64(buffer[start + index + digit]) if digit < there else np.int64(0))
        for digit in range(4):
            out[used + digit] = BASE64[three >> (18 - 6 * digit) & 63] if digit <= there else ord("=")
        used += 4
    out[used] = QUOTE
    return used + 1
