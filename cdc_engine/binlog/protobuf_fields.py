"""Encodes single fields of protobuf messages in Python. Used for packets and for the parts of entries that are equal for many rows."""

from __future__ import annotations


def encoded_varint(value: int) -> bytes:
    """Encodes a number as a varint. A negative number takes ten bytes."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def number_field(field: int, value: int) -> bytes:
    """Encodes a number field. Returns no bytes for the value 0."""
    return encoded_varint(field << 3) + encoded_varint(value) if value else b""


def bytes_field(field: int, value: bytes) -> bytes:
    """Encodes a bytes field. Returns no bytes for an empty value."""
    return encoded_varint(field << 3 | 2) + encoded_varint(len(value)) + value if value else b""
