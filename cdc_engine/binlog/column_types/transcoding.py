"""Transcodes strings of any charset to UTF-8. Strings in UTF-8 are copied and checked. Numba kernels transcode other charsets with tables.
If the tables lack a character of a column, the charset's codec decodes the column.

No character is replaced: a value that is invalid in its charset raises ValueRefusedError. The package `binlog.rows` then stops the table
and reports the column and the position, or puts the value into the quarantine.
"""
# ruff: noqa: PLR0917 - a kernel takes each array as an argument

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.cdc_engine.binlog.charsets import wide
from sluice.cdc_engine.binlog.charsets.collations import charset_of_name
from sluice.cdc_engine.binlog.column_types import gather as rows_gather
from sluice.cdc_engine.binlog.column_types.entry import (
    AnyArray,
    TypeUnsupportedError,
    ValueRefusedError,
    Values,
    buffer_of,
)
from sluice.cdc_engine.binlog.compiled import Integer, compiled
from sluice.cdc_engine.contracts import Bytes, Int32s, Int64s

# The strings of an Arrow array may have at most this many bytes together, because its offsets have 32 bits. If a column's strings have
# more, the column's first value is refused (ValueRefusedError).
ARROW_BYTES_MAX = (1 << 31) - 1
ASCII = np.arange(0x80, dtype=np.int32)
UNDEFINED = 0xFFFF  # Code point in a table for a byte that the charset does not define.


def is_text(charset: str) -> bool:
    """Returns whether strings of this charset are text. Strings without a charset, or with the charset `binary`, are bytes."""
    return charset not in ("", "binary")


def decoder(charset: str, column_name: str) -> Callable[[Values], AnyArray]:
    """Returns the function that decodes values of this charset. Raises TypeUnsupportedError for a charset that Sluice cannot decode."""
    known = charset_of_name(charset)
    if known is None or not known.codec:
        raise TypeUnsupportedError(f"column {column_name} has the charset {charset}, which Sluice cannot decode")
    if known.codec == "utf_8":
        return _utf8
    if known.bytes_max == 1:
        return functools.partial(_single_byte, table=_table(known.codec), charset=charset)
    return functools.partial(_wide, codec=known.codec, charset=charset)


def copied(values: Values, arrow: pa.DataType) -> tuple[AnyArray, bool]:
    """Returns (the values as an array of type `arrow`, whether all bytes are ASCII). `arrow`: binary or string; UTF-8 is not checked."""
    total = rows_gather.bytes_total(values.sizes)
    _require_room(total)
    offsets, out = np.empty(values.count + 1, np.int32), np.empty(total, np.uint8)
    high = rows_gather.copy_bytes(values.buffer, values.starts, values.sizes, offsets, out)
    buffers = [values.validity(), buffer_of(offsets), buffer_of(out)]
    return pa.Array.from_buffers(arrow, values.count, buffers), not high


def _require_room(total: int) -> None:
    if total > ARROW_BYTES_MAX:
        raise ValueRefusedError(
            0,
            f"makes the column's text {total} bytes long, more than the {ARROW_BYTES_MAX} bytes of an Arrow string array",
        )


def _utf8(values: Values) -> AnyArray:
    array, ascii_only = copied(values, pa.string())
    if not ascii_only:
        try:
            array.validate(full=True)
        except pa.ArrowInvalid:
            raise _refusal(values, "utf_8", "utf8") from None
    return array


def _wide(values: Values, codec: str, charset: str) -> AnyArray:
    """Decodes values of a multi-byte charset. Copies the bytes if all are ASCII and the charset contains ASCII. Otherwise uses the kernel
    of `wide`, or the charset's codec if the kernel cannot decode a value.
    """
    array, ascii_only = copied(values, pa.string())
    if ascii_only and codec not in wide.UNITS and (wide.singles(codec)[:0x80] == ASCII).all():
        return array
    room = int(rows_gather.bytes_total(values.sizes)) * wide.UTF8_BYTES_A_BYTE
    if room > ARROW_BYTES_MAX:
        return _codec(values, codec, charset)
    offsets, out = np.empty(values.count + 1, np.int32), np.empty(room, np.uint8)
    unit, lowest_first = wide.UNITS.get(codec, (0, False))
    left_to_codec = wide.transcode_wide(
        values.buffer, values.starts, values.sizes, unit, lowest_first, wide.tables(codec), offsets, out
    )
    if left_to_codec >= 0:
        return _codec(values, codec, charset)
    buffers = [values.validity(), buffer_of(offsets), buffer_of(out[: offsets[-1]])]
    return pa.Array.from_buffers(pa.string(), values.count, buffers)


def _codec(values: Values, codec: str, charset: str) -> AnyArray:
    """Decodes each distinct value once with Python's codec. Raises ValueRefusedError if a value is invalid in its charset."""
    distinct: Any = copied(values, pa.binary())[0].dictionary_encode()
    try:
        texts = [item.decode(codec) for item in distinct.dictionary.to_pylist()]
    except UnicodeDecodeError:
        raise _refusal(values, codec, charset) from None
    return pa.array(texts, pa.string()).take(distinct.indices)


def _refusal(values: Values, codec: str, charset: str) -> ValueRefusedError:
    """Returns the error that names the value that the codec cannot decode. A Python loop over all rows finds the value; the loop runs only
    after a failure.
    """
    for row in np.flatnonzero(values.starts >= 0).tolist():
        try:
            values.value(row).decode(codec)
        except UnicodeDecodeError as error:
            return ValueRefusedError(row, f"is not text in {charset}: byte {error.start} of the value is not valid")
    return ValueRefusedError(0, f"is not text in {charset}")


@functools.cache
def _table(codec: str) -> Int32s:
    """Returns the 256 code points of a one-byte charset, indexed by byte; UNDEFINED for a byte without a character."""
    return np.array([_code_point(bytes([byte]), codec) for byte in range(256)], np.int32)


def _code_point(byte: bytes, codec: str) -> int:
    try:
        return ord(byte.decode(codec))
    except UnicodeDecodeError:
        return UNDEFINED


@compiled
def transcoded_size(buffer: Bytes, starts: Int64s, sizes: Int64s, table: Int32s) -> tuple[Integer, Integer]:
    """Returns (total bytes of the values in UTF-8, first row with an undefined byte or -1). `table`: the code point of each byte, or
    UNDEFINED.
    """
    total = np.int64(0)
    for row in range(starts.shape[0]):
        for index in range(sizes[row]):
            point = table[buffer[starts[row] + index]]
            if point == UNDEFINED:
                return total, row
            total += 1 + (point >= 0x80) + (point >= 0x800)
    return total, -1


@compiled
def transcode(buffer: Bytes, starts: Int64s, sizes: Int64s, table: Int32s, offsets: Int32s, out: Bytes) -> None:
    """Writes the values of a one-byte charset in UTF-8 to `out`, back to back. Each byte becomes at most three bytes. `table`: the code
    point of each byte.
    """
    used = np.int64(0)
    offsets[0] = 0
    for row in range(starts.shape[0]):
        for index in range(sizes[row]):
            point = table[buffer[starts[row] + index]]
            if point < 0x80:
                out[used] = point
            elif point < 0x800:
                out[used], out[used + 1] = 0xC0 | point >> 6, 0x80 | point & 63
                used += 1
            else:
                out[used], out[used + 1], out[used + 2] = 0xE0 | point >> 12, 0x80 | point >> 6 & 63, 0x80 | point & 63
                used += 2
            used += 1
        offsets[row + 1] = used


def _single_byte(values: Values, table: Int32s, charset: str) -> AnyArray:
    """Decodes values of a one-byte charset. Copies the bytes if all are ASCII and the charset contains ASCII. Raises ValueRefusedError for
    a byte that the charset does not define.
    """
    array, ascii_only = copied(values, pa.string())
    if ascii_only and (table[:0x80] == ASCII).all():
        return array
    total, refused = transcoded_size(values.buffer, values.starts, values.sizes, table)
    if refused >= 0:
        raise ValueRefusedError(refused, f"has a byte that {charset} does not define")
    _require_room(total)
    offsets, out = np.empty(values.count + 1, np.int32), np.empty(total, np.uint8)
    transcode(values.buffer, values.starts, values.sizes, table, offsets, out)
    buffers = [values.validity(), buffer_of(offsets), buffer_of(out)]
    return pa.Array.from_buffers(pa.string(), values.count, buffers)
