"""Reads and writes the records of an event file. The header of each record has the record's lengths, and a checksum that continues the
checksum of the previous record.

So a record is refused if it is incomplete, if it was changed, or if another record preceded it when it was written.
"""

from __future__ import annotations

import dataclasses
import json
import os
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

HEAD = struct.Struct("<4sIIQI")  # MARK, kind, length of the text in bytes, length of the arrays in bytes, CRC32.
MARK = b"SLE1"
SEGMENT, NAMES, BLOCK, DROP = 1, 2, 3, 4
TEXT_BYTES_MAX = 1 << 30
CHECK_BYTES = 1 << 20  # How many bytes are read at once to verify a record.
# A larger record is written and read in several system calls, because Linux transfers at most 2 GiB - 4 KiB per call.
CALL_BYTES_MAX = 1 << 30

Arrays = Sequence[npt.NDArray[Any]]


@dataclasses.dataclass(frozen=True)
class Where:
    """Where a record is: the descriptor of an open file, the offset in the file, and the checksum of the previous record (`seed`)."""

    descriptor: int
    offset: int
    seed: int = 0


class TornError(Exception):
    """Raised if the bytes at an offset are not a complete record."""


@dataclasses.dataclass(frozen=True)
class RecordHeader:
    """The header of a record. `checksum` covers kind, lengths and content, and continues the checksum of the previous record."""

    kind: int
    text_bytes: int
    array_bytes: int
    checksum: int

    @property
    def size(self) -> int:
        return HEAD.size + self.text_bytes + self.array_bytes


def write_record(at: Where, kind: int, text: bytes, arrays: Arrays) -> RecordHeader:
    """Writes a record and returns its header. After an OSError, the file may contain a part of the record."""
    contents = [memoryview(text), *(array.view(np.uint8).data for array in arrays if array.nbytes)]
    sizes = (len(text), sum(len(each) for each in contents[1:]))
    checksum = _seeded(kind, *sizes, at.seed)
    for each in contents:
        checksum = zlib.crc32(each, checksum)
    head = RecordHeader(kind, *sizes, checksum)
    _write_all(at.descriptor, [memoryview(HEAD.pack(MARK, kind, *sizes, checksum)), *contents], at.offset)
    return head


def read_head(at: Where, end: int) -> RecordHeader:
    """Reads the header of a record that must end at or before the byte `end`. Raises TornError if there is no such record, and OSError if
    the file cannot be read.
    """
    offset = at.offset
    found = os.pread(at.descriptor, HEAD.size, offset)
    if len(found) < HEAD.size or found[:4] != MARK:
        raise TornError(f"no record begins at byte {offset}")
    _, kind, text_bytes, array_bytes, checksum = HEAD.unpack(found)
    head = RecordHeader(kind, text_bytes, array_bytes, checksum)
    if text_bytes > TEXT_BYTES_MAX or offset + head.size > end:
        raise TornError(
            f"the sizes of the record at byte {offset} are invalid (text {text_bytes}, arrays {array_bytes}; the file ends at byte {end})"
        )
    return head


def read_text(at: Where, head: RecordHeader) -> tuple[dict[str, Any], bytes]:
    """Returns the parsed JSON of a record, and the bytes of the JSON text. Does not verify the checksum, which `read_arrays` does. Raises
    TornError if the text is not JSON, and OSError if the file cannot be read.
    """
    text = os.pread(at.descriptor, head.text_bytes, at.offset + HEAD.size)
    try:
        found = json.loads(text) if text else {}
    except ValueError as error:
        raise TornError(f"the text of the record at byte {at.offset} is not JSON: {error}") from error
    return found, text


def read_arrays(at: Where, head: RecordHeader, text: bytes, arrays: Arrays) -> None:
    """Fills the arrays from a record, and verifies the checksum of the whole record. Raises TornError if the record is damaged, and OSError
    if the file cannot be read.
    """
    if sum(array.nbytes for array in arrays) != head.array_bytes:
        raise TornError(
            f"the record at byte {at.offset} has {head.array_bytes} bytes of arrays, which is not the size that "
            "its JSON states"
        )
    checksum = zlib.crc32(text, _seeded(head.kind, head.text_bytes, head.array_bytes, at.seed))
    offset = at.offset + HEAD.size + head.text_bytes
    for array in arrays:
        view = array.view(np.uint8).data if array.nbytes else memoryview(b"")
        while view:
            count = os.preadv(at.descriptor, [view[:CALL_BYTES_MAX]], offset)
            if not count:
                raise TornError(f"the file ends at byte {offset}, within the record at byte {at.offset}")
            checksum = zlib.crc32(view[:count], checksum)
            view, offset = view[count:], offset + count
    if checksum != head.checksum:
        raise TornError(f"the checksum of the record at byte {at.offset} does not match")


def verify(at: Where, head: RecordHeader) -> None:
    """Raises TornError if the content of a record does not match its checksum."""
    checksum = _seeded(head.kind, head.text_bytes, head.array_bytes, at.seed)
    offset, end = at.offset + HEAD.size, at.offset + head.size
    while offset < end:
        piece = os.pread(at.descriptor, min(CHECK_BYTES, end - offset), offset)
        if not piece:
            break
        checksum, offset = zlib.crc32(piece, checksum), offset + len(piece)
    if checksum != head.checksum:
        raise TornError(f"the checksum of the record at byte {at.offset} does not match")


def _seeded(kind: int, text_bytes: int, array_bytes: int, seed: int) -> int:
    return zlib.crc32(HEAD.pack(MARK, kind, text_bytes, array_bytes, seed))


def _write_all(descriptor: int, views: list[memoryview], offset: int) -> None:
    total = sum(len(view) for view in views)
    written = os.pwritev(descriptor, views, offset) if total < CALL_BYTES_MAX else 0
    for view in views if written < total else ():
        skipped = min(written, len(view))
        written, offset, rest = written - skipped, offset + skipped, view[skipped:]
        while rest:
            count = os.pwrite(descriptor, rest[:CALL_BYTES_MAX], offset)
            rest, offset = rest[count:], offset + count
