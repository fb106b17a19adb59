"""Binary JSON and differences of JSON documents, built from Python's values: for tests that need bytes no server writes on demand."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

REPLACE, INSERT, REMOVE = range(3)
LITERALS = {None: 0, True: 1, False: 2}
LARGE_OBJECT, LARGE_ARRAY, LITERAL, INT64, STRING = 1, 3, 4, 9, 12
Path = Sequence[str | int]


def document(value: Any) -> bytes:
    """The value as the server stores it, objects and arrays always in their large form."""
    kind, content = _typed(value)
    return bytes([kind]) + content


def text_of(value: Any) -> str:
    """The value as the server prints it."""
    return json.dumps(_ordered(value), ensure_ascii=False)


def difference(operation: int, path: str, value: Any = None) -> bytes:
    """One difference; `value` is of no account for REMOVE."""
    head = bytes([operation]) + _sized(path.encode())
    return head if operation == REMOVE else head + _sized(document(value))


def path_text(path: Path) -> str:
    """The path as the server writes it. Keys that are no plain names are quoted; a negative number counts from the end."""
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


def _typed(value: Any) -> tuple[int, bytes]:
    if value is None or isinstance(value, bool):
        return LITERAL, bytes([LITERALS[value]])
    if isinstance(value, int):
        return INT64, struct.pack("<q", value)
    if isinstance(value, str):
        return STRING, _seven_bits(len(value.encode())) + value.encode()
    keys = [key.encode() for key in _keys(value)] if isinstance(value, dict) else []
    values = [value[key] for key in _keys(value)] if isinstance(value, dict) else value
    return (LARGE_OBJECT if isinstance(value, dict) else LARGE_ARRAY), _container(keys, values)


def _container(keys: list[bytes], values: list[Any]) -> bytes:
    at = 8 + 6 * len(keys) + 5 * len(values)
    entries, content = b"", b""
    for key in keys:
        entries += struct.pack("<IH", at + len(content), len(key))
        content += key
    for value in values:
        kind, data = _typed(value)
        inline = kind == LITERAL
        entries += bytes([kind]) + (data.ljust(4, b"\0") if inline else struct.pack("<I", at + len(content)))
        content += b"" if inline else data
    return struct.pack("<II", len(values), at + len(content)) + entries + content


def _seven_bits(size: int) -> bytes:
    out = bytearray()
    while size > 0x7F:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([*out, size])


def _sized(data: bytes) -> bytes:
    return (bytes([len(data)]) if len(data) < 0xFB else b"\xfd" + struct.pack("<I", len(data))[:3]) + data
