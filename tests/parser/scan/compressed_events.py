"""Builds compressed events byte by byte: MySQL's transaction payloads, with true or false sizes, and MariaDB's compressed events."""

from __future__ import annotations

import zlib

import pyarrow as pa

from tests.parser.scan.event_factory import EventFactory

PLAIN = {2: 165, 23: 166, 24: 167, 25: 168, 30: 169, 31: 170, 32: 171}


def length_encoded(number: int) -> bytes:
    if number < 0xFB:
        return bytes([number])
    return b"\xfe" + number.to_bytes(8, "little")


def field(kind: int, value: int) -> bytes:
    encoded = length_encoded(value)
    return bytes([kind]) + length_encoded(len(encoded)) + encoded


def inner(*events: bytes) -> bytes:
    """Joins events into the content of a payload. The events must be built without checksums."""
    return b"".join(events)


def payload(make: EventFactory, content: bytes, size: int | None = None, method: int = 0, tail: bytes = b"") -> bytes:
    """Returns a TRANSACTION_PAYLOAD event with `content`. `size` is the uncompressed size in the event's header fields. `tail` is appended
    to the compressed bytes.
    """
    packed = pa.Codec("zstd").compress(content, asbytes=True) if method == 0 else content
    packed += tail
    fields = field(2, method) + field(3, len(content) if size is None else size) + field(1, len(packed))
    return make.event(40, fields + b"\x00" + packed)


def within(events: int = 1, rows: int = 1, content: bytes = b"\x01\x01\x00\x07\x00\x00\x00") -> bytes:
    """Returns the content of a payload: BEGIN, then `events` table maps, each followed by `rows` row events, and the end."""
    make = EventFactory(checksum=False)
    parts = [make.query("BEGIN")]
    for _ in range(events):
        parts += [make.table_map(5), *(make.rows(5, content=content) for _ in range(rows))]
    return inner(*parts, make.xid())


def mariadb_compressed(make: EventFactory, event: bytes, at: int, length: int | None = None) -> bytes:
    """Returns `event` as a compressed event of MariaDB. `event` has no checksum. Its bytes from the offset `at` on are compressed. `length`
    is the uncompressed size in the compressed event.
    """
    part = event[at:]
    said = (len(part) if length is None else length).to_bytes(4, "big")
    return make.event(PLAIN[event[4]], event[19:at] + b"\x84" + said + zlib.compress(part))


def mariadb_rows(make: EventFactory, event_type: int, images: bytes) -> bytes:
    """Returns a compressed row event of one column. `images` follow its bitmaps."""
    bitmaps = b"\x01" * (2 if event_type in (24, 31) else 1)
    event = EventFactory(checksum=False).rows(5, event_type, b"\x01" + bitmaps + images)
    return mariadb_compressed(make, event, len(event) - len(images))


def mariadb_query(make: EventFactory, text: str) -> bytes:
    event = EventFactory(checksum=False).query(text)
    return mariadb_compressed(make, event, len(event) - len(text.encode()))
