"""Splits a binlog into events without checksums, and damages the events."""

from __future__ import annotations

import random
import struct

import pyarrow as pa

from sluice.cdc_engine.binlog.events import event_types as types

Event = bytes
MAGIC = b"\xfebin"
CHECKSUM_BYTES = 4
INTERESTING = (0, 1, 0x7F, 0x80, 0xFA, 0xFB, 0xFC, 0xFD, 0xFE, 0xFF)
# A greater payload is a decompression bomb that an earlier damage made. Such a payload is not damaged again.
PLAIN_BYTES_MAX = 1 << 24
EVENTS_MAX = 40  # The greatest number of events in a round.


def without_checksums(binlog: bytes) -> bytes:
    """Returns the events of a binlog file, concatenated, without their checksums and without the file's magic bytes. The lengths in the
    events are corrected.
    """
    at, parts = len(MAGIC), []
    while at + types.HEADER_BYTES <= len(binlog):
        (length,) = struct.unpack_from("<I", binlog, at + types.LENGTH_AT)
        event = bytearray(binlog[at : at + length - CHECKSUM_BYTES])
        if event[types.TYPE_AT] == types.FORMAT_DESCRIPTION:
            event = bytearray(binlog[at : at + length])  # A format description event always has space for a checksum.
            event[-CHECKSUM_BYTES - 1] = 0
        parts.append(with_length(bytes(event)))
        at += length
    return b"".join(parts)


def with_length(event: bytes) -> bytes:
    """Returns the event with its real length and without its end position. End positions would reveal the damage, because they would leave
    gaps between events.
    """
    return event[: types.LENGTH_AT] + struct.pack("<II", len(event), 0) + event[types.LENGTH_AT + 8 :]


def events_of(stream: bytes) -> list[Event]:
    at, events = 0, []
    while at + types.HEADER_BYTES <= len(stream):
        (length,) = struct.unpack_from("<I", stream, at + types.LENGTH_AT)
        events.append(stream[at : at + max(length, types.HEADER_BYTES)])
        at += len(events[-1])
    return events


def damaged(events: list[Event], chance: random.Random) -> list[Event]:
    """Returns a range of the events, with one to three damaged events. Sometimes one of the events is also left out or repeated."""
    begin = chance.randrange(len(events))
    part = [events[0], *events[begin : begin + chance.randrange(1, EVENTS_MAX)]]
    for _ in range(chance.randrange(1, 4)):
        index = chance.randrange(len(part))
        part[index] = chance.choice(WAYS)(part[index], chance)
    if chance.random() < 0.2:
        index = chance.randrange(len(part))
        part.insert(chance.randrange(len(part)), part[index]) if chance.random() < 0.5 else part.pop(index)
    return [event for event in part if event]


def flip(event: Event, chance: random.Random) -> Event:
    changed = bytearray(event)
    for _ in range(chance.randrange(1, 8)):
        index = chance.randrange(types.HEADER_BYTES, len(changed)) if len(changed) > types.HEADER_BYTES else 4
        if index not in range(types.LENGTH_AT, types.LENGTH_AT + 4):
            changed[index] = chance.choice((*INTERESTING, changed[index] ^ (1 << chance.randrange(8))))
    return bytes(changed)


def head(event: Event, chance: random.Random) -> Event:
    """Damages bytes soon after the header, where lengths, counts and bitmaps are."""
    changed = bytearray(event)
    for _ in range(chance.randrange(1, 4)):
        index = types.HEADER_BYTES + chance.randrange(40)
        if index < len(changed):
            changed[index] = chance.choice((*INTERESTING, chance.randrange(256)))
    return bytes(changed)


def truncate(event: Event, chance: random.Random) -> Event:
    return with_length(event[: chance.randrange(types.HEADER_BYTES, len(event) + 1)])


def grow(event: Event, chance: random.Random) -> Event:
    index = chance.randrange(types.HEADER_BYTES, len(event) + 1)
    return with_length(event[:index] + chance.randbytes(chance.choice((1, 2, 7, 300))) + event[index:])


def lie(event: Event, chance: random.Random) -> Event:
    """Writes a wrong event length."""
    length = chance.choice(
        (0, 1, 18, 19, 20, len(event) - 1, len(event) + 1, 0xFFFFFF, 1 << 30, 0xFFFFFFFF, chance.getrandbits(32))
    )
    return event[: types.LENGTH_AT] + struct.pack("<I", length & 0xFFFFFFFF) + event[types.LENGTH_AT + 4 :]


def retype(event: Event, chance: random.Random) -> Event:
    kinds = (chance.choice(list(types.NAMES)), chance.randrange(256))
    return event[: types.TYPE_AT] + bytes([chance.choice(kinds)]) + event[types.TYPE_AT + 1 :]


def inside(event: Event, chance: random.Random) -> Event:
    """Damages the content of a compressed transaction: damages its events, writes wrong sizes, or makes it a decompression bomb."""
    if event[types.TYPE_AT] != types.TRANSACTION_PAYLOAD:
        return flip(event, chance)
    at, fields = _payload_at(event)
    try:
        plain = pa.CompressedInputStream(pa.BufferReader(event[at:]), "zstd").read()
    except OSError:
        return event
    if len(plain) > PLAIN_BYTES_MAX:
        return event
    if chance.random() < 0.15:
        plain = chance.choice((bytes(chance.choice((1 << 16, 200 << 20))), plain * 50))
    else:
        plain = b"".join(damaged_inside(events_of(plain), chance))
    packed = pa.Codec("zstd").compress(plain, asbytes=True)
    said = len(plain) if chance.random() < 0.8 else chance.choice((0, 1, len(plain) + 1, 1 << 32, 1 << 62))
    body = (
        b"\x02\x01\x00\x03\x09\xfe"
        + struct.pack("<Q", said)
        + b"\x01\x09\xfe"
        + struct.pack("<Q", len(packed))
        + b"\x00"
    )
    return with_length(event[: types.HEADER_BYTES] + (body if fields else b"\x00") + packed)


def damaged_inside(events: list[Event], chance: random.Random) -> list[Event]:
    index = chance.randrange(len(events)) if events else 0
    return [
        chance.choice((flip, head, truncate, grow, lie, retype))(event, chance) if number == index else event
        for number, event in enumerate(events)
    ]


def _payload_at(event: Event) -> tuple[int, bool]:
    """Returns the offset of the payload in the event, and whether fields precede the payload. The type and the length of a field have
    one byte each.
    """
    at = types.HEADER_BYTES
    while at + 1 < len(event) and event[at]:
        at += 2 + event[at + 1]
    return at + 1, at > types.HEADER_BYTES


WAYS = (flip, head, head, truncate, grow, lie, retype, inside, inside)
