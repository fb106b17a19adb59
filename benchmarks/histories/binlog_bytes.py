"""Builds the binlog events of a history, as a server writes and sends them, without checksums.

There are two tables: `shop.orders` with a key, and `shop.audit` without one. Both tables have the columns (id INT, number BIGINT).
"""

from __future__ import annotations

import struct
import uuid

from sluice.cdc_engine.binlog.events import event_types as types
from sluice.cdc_engine.gtid import GtidSet

MAGIC_BYTES = 4
DATABASE = "shop"
KEYED, KEYLESS = "orders", "audit"
TABLE_IDS = {KEYED: 7, KEYLESS: 8}
# The lengths of post-headers by event type. Only QUERY, HEARTBEAT and the types with a table id need correct lengths here.
HEADER_SIZES = bytes({1: 13, 18: 8, 22: 8, 23: 8, 24: 8, 29: 10, 30: 10, 31: 10}.get(index, 0) for index in range(41))
HEARTBEAT = 27
WRITE, UPDATE, DELETE = 30, 31, 32


def event(event_type: int, body: bytes, at: int, *, time: int = 0, server_id: int = 1, flags: int = 0) -> bytes:
    """Returns a whole event that begins at the file offset `at`. An event whose flags say that it is artificial is in no file, and has
    no end position.
    """
    length = types.HEADER_BYTES + len(body)
    end = 0 if flags & types.FLAG_ARTIFICIAL else at + length
    return struct.pack("<IBIIIH", time, event_type, server_id, length, end, flags) + body


def rotate(file: str, offset: int) -> bytes:
    """Returns the artificial rotate event that a dump sends before each file."""
    return event(types.ROTATE, struct.pack("<Q", offset) + file.encode(), 0, flags=types.FLAG_ARTIFICIAL)


def rotate_in_file(file: str, at: int) -> bytes:
    """Returns the rotate event at the end of a file. A server writes it for FLUSH, and when the file has reached its size limit."""
    return event(types.ROTATE, struct.pack("<Q", MAGIC_BYTES) + file.encode(), at)


def format_description(created: int, *, server_id: int, first: bool = True) -> bytes:
    """Returns a format description event. `created` is the time at which the file was created, in seconds since 1970. `first` is True if
    the event is at the beginning of the file, and False if a dump starts inside the file.
    """
    body = struct.pack("<H50sIB", 4, b"8.0.31", 0, types.HEADER_BYTES) + HEADER_SIZES + bytes(1) + bytes(4)
    flags = 0 if first else types.FLAG_ARTIFICIAL
    return event(types.FORMAT_DESCRIPTION, body, MAGIC_BYTES, time=created, server_id=server_id, flags=flags)


def heartbeat(file: str, offset: int) -> bytes:
    """Returns the heartbeat event that an idle server sends periodically."""
    length = types.HEADER_BYTES + len(file)
    return struct.pack("<IBIIIH", 0, HEARTBEAT, 1, length, offset, 0) + file.encode()


def previous_gtids(executed: GtidSet, at: int) -> bytes:
    return event(types.PREVIOUS_GTIDS, executed.encoded(), at)


def gtid(server: str, number: int, at: int, time: int) -> bytes:
    """Returns a GTID event with the commit time. If `server` is empty, returns the anonymous event of a server without GTIDs."""
    source = uuid.UUID(server).bytes if server else bytes(16)
    body = b"\0" + source + struct.pack("<qBqq", number, 2, 0, 1) + (time * 1_000_000).to_bytes(7, "little")
    return event(33 if server else 34, body, at, time=time)


def query(text: str, at: int, time: int) -> bytes:
    name = DATABASE.encode()
    status = b"\x00\x00\x00\x00\x00"
    head = struct.pack("<IIBHH", 1, 0, len(name), 0, len(status)) + status
    return event(types.QUERY, head + name + b"\0" + text.encode(), at, time=time)


def xid(at: int, time: int) -> bytes:
    return event(16, struct.pack("<Q", 1), at, time=time)


def table_map(table: str, at: int, time: int) -> bytes:
    names = b"".join(bytes([len(name)]) + name.encode() + b"\0" for name in (DATABASE, table))
    head = TABLE_IDS[table].to_bytes(6, "little") + b"\x01\x00"
    return event(types.TABLE_MAP, head + names + b"\x02" + b"\x03\x08" + b"\x00" + b"\x00", at, time=time)


def rows(kind: int, table: str, images: list[tuple[int, int]], at: int, time: int) -> bytes:
    """Returns one row event. An image is (id, number). An update has two images per row."""
    bitmaps = b"\x03" * (2 if kind == UPDATE else 1)
    head = TABLE_IDS[table].to_bytes(6, "little") + b"\x01\x00" + b"\x02\x00" + b"\x02" + bitmaps
    return event(kind, head + b"".join(struct.pack("<Biq", 0, *image) for image in images), at, time=time)


def images_of(content: bytes, kind: int) -> list[tuple[int, int]]:
    """Returns the images in a whole row event, as the inverse of `rows`."""
    begin = types.HEADER_BYTES + 6 + 2 + 2 + 1 + (2 if kind == UPDATE else 1)
    return [struct.unpack_from("<Biq", content, at)[1:] for at in range(begin, len(content), 13)]


def packets(events: list[bytes]) -> bytes:
    """Returns the events as the packets that a socket delivers."""
    return b"".join(struct.pack("<I", len(each) + 1)[:3] + b"\x01\0" + each for each in events)
