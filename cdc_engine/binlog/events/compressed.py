"""Decompresses compressed events into streams of plain events, which `parser.scan` then scans like uncompressed events.

TRANSACTION_PAYLOAD (MySQL 8.0.20 and later): all events of a transaction, without checksums, as one zstd stream after a
list of fields.
https://dev.mysql.com/doc/dev/mysql-server/latest/classmysql_1_1binlog_1_1event_1_1Transaction__payload__event.html.

QUERY_COMPRESSED and compressed row events (MariaDB 10.2 and later): one event whose statement or row images are
compressed with zlib. https://mariadb.com/kb/en/compressing-events-to-reduce-size-of-the-binary-log/.

Memory is allocated only for bytes that were decompressed. The size that an event states is never allocated in advance, because it may be
wrong.
"""

from __future__ import annotations

import dataclasses
import struct
import zlib
from typing import Any

import pyarrow as pa

from sluice.cdc_engine import limits
from sluice.cdc_engine.binlog.events import event_types as types
from sluice.cdc_engine.binlog.events.recorded import RecordedEvents
from sluice.cdc_engine.contracts import Bytes
from sluice.cdc_engine.errors import BinlogFormatError
from sluice.cdc_engine.ports import Content

FIELD_END, FIELD_SIZE, FIELD_COMPRESSION, FIELD_UNCOMPRESSED_SIZE = range(4)
ZSTD, NONE = 0, 255
# The maximum total number of bytes of the fields before a payload (MySQL writes about twenty). An event with more bytes before the payload
# is refused as damaged.
FIELD_BYTES_MAX = 256


COMPRESSED = frozenset(
    {
        types.TRANSACTION_PAYLOAD,
        types.MARIADB_QUERY_COMPRESSED,
        *types.MARIADB_ROWS_COMPRESSED_V1,
        *types.MARIADB_ROWS_COMPRESSED,
    }
)


def content_of(event: Bytes) -> Content:
    """Returns the events that a compressed event contains, decompressed. `event`: an event of a type in COMPRESSED, without its checksum.
    Raises BinlogFormatError if the event is damaged or compressed by an unknown method.
    """
    if event[types.TYPE_AT] == types.TRANSACTION_PAYLOAD:
        return _payload_content(event[types.HEADER_BYTES :])
    return RecordedEvents(_plain_event(event.tobytes()))


# ── MySQL's TRANSACTION_PAYLOAD ──


class _Stream:
    """Reads a zstd stream, or plain bytes, with pyarrow. Uses at most the memory of the caller's buffer and of zstd's window (128 MiB)."""

    def __init__(self, payload: Bytes, size: int, compression: int) -> None:
        self.size = size
        source = pa.BufferReader(pa.py_buffer(memoryview(payload)))  # type: ignore[arg-type]
        self._stream: Any = source if compression == NONE else pa.CompressedInputStream(source, "zstd")

    def read_into(self, space: memoryview) -> int:
        try:
            return int(self._stream.readinto(space))
        except (OSError, pa.ArrowException) as error:
            raise BinlogFormatError(f"a compressed transaction cannot be read: {error}") from error


@dataclasses.dataclass(frozen=True)
class _Fields:
    """The fields before the payload of a TRANSACTION_PAYLOAD event. `at`: bytes between the event's header and the payload."""

    at: int
    payload_bytes: int
    compression: int
    uncompressed_bytes: int


def _payload_content(body: Bytes) -> _Stream:
    fields = _fields(body[:FIELD_BYTES_MAX].tobytes())
    if fields.at + fields.payload_bytes != len(body):
        raise BinlogFormatError("the length of a compressed transaction differs from the length of its event")
    if fields.compression not in (ZSTD, NONE):
        raise BinlogFormatError(f"a transaction is compressed by the unknown method {fields.compression}")
    if not 0 < fields.uncompressed_bytes < limits.PAYLOAD_BYTES_MAX:
        raise BinlogFormatError(
            f"a compressed transaction states {fields.uncompressed_bytes} decompressed bytes, which is not a valid size"
        )
    return _Stream(body[fields.at :], fields.uncompressed_bytes, fields.compression)


def _fields(head: bytes) -> _Fields:
    """Parses the fields before the payload of a TRANSACTION_PAYLOAD event. The type, length and value of a field are length-encoded
    integers; FIELD_END has only a type. Skips unknown fields.
    """
    found = {FIELD_SIZE: -1, FIELD_COMPRESSION: -1, FIELD_UNCOMPRESSED_SIZE: -1}
    at = 0
    while True:
        kind, at = _length_encoded(head, at)
        if kind == FIELD_END:
            size = found[FIELD_UNCOMPRESSED_SIZE]
            if found[FIELD_COMPRESSION] == NONE and size < 0:
                size = found[FIELD_SIZE]
            return _Fields(at, found[FIELD_SIZE], found[FIELD_COMPRESSION], size)
        length, at = _length_encoded(head, at)
        if at + length > len(head):
            raise BinlogFormatError("the fields of a compressed transaction are truncated")
        if kind in found:
            found[kind], _ = _length_encoded(head[: at + length], at)
        at += length


def _length_encoded(data: bytes, at: int) -> tuple[int, int]:
    """Reads a length-encoded integer of 1, 3, 4 or 9 bytes. Returns (integer, offset after the integer). Raises BinlogFormatError if the
    integer is truncated or its first byte is not valid.
    """
    first = data[at] if at < len(data) else 0xFB
    width = {0xFC: 2, 0xFD: 3, 0xFE: 8}.get(first, 0)
    if first in (0xFB, 0xFF) or at + 1 + width > len(data):
        raise BinlogFormatError("the fields of a compressed transaction are truncated")
    return (int.from_bytes(data[at + 1 : at + 1 + width], "little") if width else first), at + 1 + width


PLAIN_TYPE = {
    types.MARIADB_QUERY_COMPRESSED: types.QUERY,
    **dict(
        zip(
            types.MARIADB_ROWS_COMPRESSED_V1,
            (types.WRITE_ROWS_V1, types.UPDATE_ROWS_V1, types.DELETE_ROWS_V1),
            strict=True,
        )
    ),
    **dict(zip(types.MARIADB_ROWS_COMPRESSED, (types.WRITE_ROWS, types.UPDATE_ROWS, types.DELETE_ROWS), strict=True)),
}
QUERY_HEADER_BYTES = 13
IS_COMPRESSED, METHOD, LENGTH_BYTES = 0x80, 0x70, 0x07  # Masks for the first byte of MariaDB's compressed part.
ZLIB = 0x00


def _plain_event(event: bytes) -> bytes:
    """Returns the event in the form that the server would write without compression, but without a checksum."""
    plain_type = PLAIN_TYPE[event[types.TYPE_AT]]
    try:
        at = _compressed_at(event, plain_type)
        part = _decompressed(event[at:])
    except (IndexError, struct.error, zlib.error) as error:
        raise BinlogFormatError(f"a {types.event_name(event[types.TYPE_AT])} cannot be read: {error}") from error
    header = bytearray(event[:at])
    header[types.TYPE_AT] = plain_type
    struct.pack_into("<I", header, types.LENGTH_AT, at + len(part))
    return bytes(header) + part


def _compressed_at(event: bytes, plain_type: int) -> int:
    """Returns the offset of an event's compressed part: the statement of a QUERY event, or the row images of a row event."""
    if plain_type == types.QUERY:
        (status_bytes,) = struct.unpack_from("<H", event, types.HEADER_BYTES + 11)
        return types.HEADER_BYTES + QUERY_HEADER_BYTES + int(status_bytes) + event[types.HEADER_BYTES + 8] + 1
    at = types.HEADER_BYTES + 8
    if plain_type in (types.WRITE_ROWS, types.UPDATE_ROWS, types.DELETE_ROWS):
        at += int(struct.unpack_from("<H", event, at)[0])
    columns, at = _length_encoded(event, at)
    bitmaps = 2 if plain_type in (types.UPDATE_ROWS, types.UPDATE_ROWS_V1) else 1
    return at + bitmaps * ((columns + 7) // 8)


def _decompressed(part: bytes) -> bytes:
    """Decompresses a part that consists of a byte of flags, the decompressed length (1 to 4 bytes, big-endian) and a zlib stream."""
    flags, width = part[0], part[0] & LENGTH_BYTES
    if not flags & IS_COMPRESSED or flags & METHOD != ZLIB or not 1 <= width <= 4:
        raise BinlogFormatError("an event is compressed by an unknown method")
    length = int.from_bytes(part[1 : 1 + width], "big")
    if length > limits.EVENT_BYTES_MAX:
        raise BinlogFormatError(f"a compressed event states {length} decompressed bytes, which is not a valid size")
    stream = zlib.decompressobj()
    plain = stream.decompress(part[1 + width :], length + 1)
    if len(plain) != length or not stream.eof or stream.unused_data:
        raise BinlogFormatError("the decompressed size of a compressed event differs from its stated size")
    return plain
