"""Converts packets of Canal's protocol (CanalProtocol.proto) between bytes and values. Pure.

A frame is a length (4 bytes, big-endian) and a Packet with a type (field 3) and a body (field 5). Clients send only small packets, so a
length above FRAME_BYTES_MAX is refused.
"""

from __future__ import annotations

import dataclasses
import enum
import struct
from collections.abc import Iterator, Mapping

from sluice.cdc_engine.binlog.protobuf_fields import bytes_field, encoded_varint, number_field
from sluice.cdc_engine.errors import CanalServiceError

# The most bytes in a packet of a client; a longer packet is refused. The longest field that clients send is the filter of tables, which is
# far shorter.
FRAME_BYTES_MAX = 1 << 16
FIELDS_MAX = 64
LENGTH = struct.Struct(">I")
VARINT_BITS_MAX = 63


class PacketType(enum.IntEnum):
    HANDSHAKE = 1
    CLIENTAUTHENTICATION = 2
    ACK = 3
    SUBSCRIPTION = 4
    UNSUBSCRIPTION = 5
    GET = 6
    MESSAGES = 7
    CLIENTACK = 8
    SHUTDOWN = 9
    DUMP = 10
    HEARTBEAT = 11
    CLIENTROLLBACK = 12


# Code of a unit, as in Java's TimeUnit → the unit's length in seconds. A client sends the time-out of a get with the code of its unit.
UNIT_SECONDS = (1e-9, 1e-6, 1e-3, 1.0, 60.0, 3600.0, 86400.0)
MILLISECONDS = 2


class PacketError(CanalServiceError):
    """Raised if bytes are not a packet of the protocol."""

    code = "PACKET"


Fields = Mapping[int, int | bytes]


@dataclasses.dataclass(frozen=True)
class Packet:
    """A parsed packet. `kind` is the number of the packet's type, which is not always a number in PacketType."""

    kind: int
    fields: Fields

    def text(self, field: int) -> str:
        """Returns a text field, or an empty text if the packet lacks the field. Raises PacketError if the field is not UTF-8."""
        value = self.fields.get(field, b"")
        try:
            return value.decode() if isinstance(value, bytes) else str(value)
        except UnicodeDecodeError:
            raise PacketError(f"field {field} is not UTF-8") from None

    def number(self, field: int, default: int = 0) -> int:
        """Returns a number field, or `default` if the packet lacks the field. Raises PacketError if the field is not a number."""
        value = self.fields.get(field, default)
        if isinstance(value, bytes):
            raise PacketError(f"field {field} is not a number")
        return value

    def raw(self, field: int) -> bytes:
        value = self.fields.get(field, b"")
        if isinstance(value, int):
            raise PacketError(f"field {field} is not bytes")
        return value


def parsed(frame: bytes) -> Packet:
    """Parses the bytes of a frame after its length. Raises PacketError if they are not a packet."""
    outer = Packet(0, dict(_fields(frame)))
    if outer.number(4) not in {0, 1}:
        raise PacketError("Sluice cannot read compressed packets")
    return Packet(outer.number(3), dict(_fields(outer.raw(5))))


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    for _ in range(FIELDS_MAX):
        if at == len(data):
            return
        key, at = _varint(data, at)
        field, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield field, value - (1 << 64) if value >> VARINT_BITS_MAX else value
        elif wire == 2:
            size, at = _varint(data, at)
            if size > len(data) - at:
                raise PacketError("a packet ends within a field")
            yield field, data[at : at + size]
            at += size
        elif wire in {1, 5} and len(data) - at >= (4 if wire == 5 else 8):
            at += 4 if wire == 5 else 8
        else:
            raise PacketError("a packet is not protobuf")
    if at != len(data):
        raise PacketError(f"a packet has more than {FIELDS_MAX} fields")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise PacketError("a packet ends within a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & ((1 << 64) - 1), at
    raise PacketError("a packet has a number of more than 64 bits")


def frame(kind: PacketType, body: bytes, *, version: bool = True) -> bytes:
    packet = (b"\x10\x01" if version else b"") + number_field(3, kind) + bytes_field(5, body)
    return LENGTH.pack(len(packet)) + packet


def handshake(seed: bytes) -> bytes:
    return frame(PacketType.HANDSHAKE, bytes_field(2, seed))


def ack() -> bytes:
    return frame(PacketType.ACK, b"")


def refusal(code: int, message: str) -> bytes:
    return frame(PacketType.ACK, number_field(1, code) + bytes_field(2, message.encode()))


def messages_head(batch_id: int, size: int) -> bytes:
    """Returns the beginning of a MESSAGES frame. The caller then sends the encoded messages, which have `size` bytes. As in Canal, the
    packet has no version.
    """
    ident = number_field(1, batch_id)
    body_size = len(ident) + size
    packet_head = number_field(3, PacketType.MESSAGES)
    if body_size:
        packet_head += encoded_varint(5 << 3 | 2) + encoded_varint(body_size)
    return LENGTH.pack(len(packet_head) + body_size) + packet_head + ident


def no_messages() -> bytes:
    return frame(PacketType.MESSAGES, number_field(1, -1))
