"""Builds binary JSON, and differences between JSON documents, from Python values. Tests use it for bytes that no server
writes on demand.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Sequence
from typing import Any

from sluice.cdc_engine.binlog.documents import jsonb

REPLACE, INSERT, REMOVE = range(3)
LITERALS = {None: 0, True: 1, False: 2}
SMALL_OBJECT, LARGE_OBJECT, SMALL_ARRAY, LARGE_ARRAY, LITERAL, INT64, DOUBLE, STRING, OPAQUE = (
    0,
    1,
    2,
    3,
    4,
    9,
    11,
    12,
    15,
)
INTEGERS = {5: "<h", 6: "<H", 7: "<i", 8: "<I", 9: "<q", 10: "<Q"}
# Kinds of values that are stored in the entry itself, by the width of offsets.
INLINED = {2: {LITERAL, 5, 6}, 4: {LITERAL, 5, 6, 7, 8}}
Path = Sequence[str | int]


@dataclasses.dataclass(frozen=True)
class Scalar:
    """A value whose kind Python's type does not show."""

    kind: int
    data: bytes


def integer(kind: int, value: int) -> Scalar:
    return Scalar(kind, struct.pack(INTEGERS[kind], value))


def opaque(code: int, payload: bytes) -> Scalar:
    return Scalar(OPAQUE, bytes([code]) + _seven_bits(len(payload)) + payload)


def document(value: Any, *, small: bool = False) -> bytes:
    """Returns the value as the server stores it. Objects and arrays have their large form, or with `small` their small form where
    possible.
    """
    kind, content = _typed(value, small=small)
    return bytes([kind]) + content


def render(data: bytes) -> str:
    """Returns the text of a stored document, as the reader in Python prints it. Raises JsonFormatError if the document is malformed."""
    text = str(jsonb.read(data, jsonb.printed))
    if len(text.encode()) > jsonb.TEXT_FACTOR * len(data) + jsonb.TEXT_SPARE:
        raise jsonb.JsonFormatError("parts of the document overlap")
    return text


def text_of(value: Any) -> str:
    """Returns the value as the server prints it."""
    return json.dumps(_ordered(value), ensure_ascii=False)


def difference(operation: int, path: str, value: Any = None) -> bytes:
    """Returns one difference. `value` has no effect for REMOVE."""
    head = bytes([operation]) + _sized(path.encode())
    return head if operation == REMOVE else head + _sized(document(value))


def path_text(path: Path) -> str:
    """Returns the path as the server writes it. Keys that are not plain names are quoted. A negative number counts from the end."""
    return "$" + "".join(_leg(leg) for leg in path)


def _leg(leg: str | int) -> str:
    if isinstance(leg, str):
        return f".{leg}" if leg.isidentifier() else f".{json.dumps(leg, ensure_ascii=False)}"
    if leg >= 0:
        return f"[{leg}]"
    return "[last]" if leg == -1 else f"[last-{-1 - leg}]"


def _ordered(value: Any) -> Any:
    if isinstance(value, list):
        return [_ordered(each) for each in value]
    return {key: _ordered(value[key]) for key in _keys(value)} if isinstance(value, dict) else value


def _keys(value: dict[str, Any]) -> list[str]:
    return sorted(value, key=lambda key: (len(key.encode()), key.encode()))


def _typed(value: Any, *, small: bool) -> tuple[int, bytes]:
    if isinstance(value, Scalar):
        return value.kind, value.data
    if value is None or isinstance(value, bool):
        return LITERAL, bytes([LITERALS[value]])
    if isinstance(value, int):
        return INT64, struct.pack("<q", value)
    if isinstance(value, float):
        return DOUBLE, struct.pack("<d", value)
    if isinstance(value, str):
        return STRING, _seven_bits(len(value.encode())) + value.encode()
    keys = [key.encode() for key in _keys(value)] if isinstance(value, dict) else []
    values = [value[key] for key in _keys(value)] if isinstance(value, dict) else value
    if small and len(content := _container(keys, values, width=2, small=small)) < 1 << 16:
        return (SMALL_OBJECT if isinstance(value, dict) else SMALL_ARRAY), content
    return (LARGE_OBJECT if isinstance(value, dict) else LARGE_ARRAY), _container(keys, values, width=4, small=small)


def _container(keys: list[bytes], values: list[Any], *, width: int, small: bool) -> bytes:
    """Returns an object or array whose sizes and offsets have `width` bytes. If the container is too large for width 2, they are wrong, and
    the caller uses width 4.
    """
    at = 2 * width + (width + 2) * len(keys) + (width + 1) * len(values)
    entries, content = b"", b""
    for key in keys:
        entries += _number(at + len(content), width) + struct.pack("<H", len(key))
        content += key
    for value in values:
        kind, data = _typed(value, small=small)
        inline = kind in INLINED[width]
        entries += bytes([kind]) + (data.ljust(width, b"\0") if inline else _number(at + len(content), width))
        content += b"" if inline else data
    return _number(len(values), width) + _number(at + len(content), width) + entries + content


def _number(value: int, width: int) -> bytes:
    return struct.pack("<I", value)[:width]


def _seven_bits(size: int) -> bytes:
    out = bytearray()
    while size > 0x7F:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([*out, size])


def _sized(data: bytes) -> bytes:
    return (bytes([len(data)]) if len(data) < 0xFB else b"\xfd" + struct.pack("<I", len(data))[:3]) + data
