"""Builds results of the binary protocol from values, as a server would send them. No server is needed."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence

from sluice.cdc_engine import limits
from sluice.cdc_engine.binlog.type_codes import TypeCode
from sluice.cdc_engine.contracts import Column, TableVersion

Value = int | bytes | None
INT, BLOB_LENGTH_BYTES = 63, 4
COLUMNS = (
    Column(name="id", type_code=TypeCode.LONGLONG, mysql_type="bigint"),
    Column(name="small", type_code=TypeCode.SHORT, unsigned=True, mysql_type="smallint unsigned"),
    Column(name="raw", type_code=TypeCode.BLOB, metadata=BLOB_LENGTH_BYTES, charset="binary", mysql_type="longblob"),
    Column(name="word", type_code=TypeCode.VARCHAR, metadata=80, charset="binary", mysql_type="varbinary(80)"),
)
SENT = ((TypeCode.LONGLONG, 0), (TypeCode.SHORT, 0x20), (TypeCode.BLOB, 0x90), (TypeCode.VAR_STRING, 0x80))
FORMATS = ("<q", "<H", "", "")


def version(*extra: Column) -> TableVersion:
    """Returns a table with four columns and the columns in `extra`. The four columns cover every way in which a value is sent: with a fixed
    width, or after its length.
    """
    return TableVersion(database="shop", table="orders", columns=(*COLUMNS, *extra), key=())


def length_encoded(number: int) -> bytes:
    if number < 0xFB:
        return bytes([number])
    width, mark = (2, 0xFC) if number < 1 << 16 else (3, 0xFD) if number < 1 << 24 else (8, 0xFE)
    return bytes([mark]) + number.to_bytes(width, "little")


def row_payload(values: Sequence[Value], formats: Sequence[str] = FORMATS) -> bytes:
    bitmap = sum(1 << index + 2 for index, value in enumerate(values) if value is None)
    parts = [b"\0", bitmap.to_bytes((len(values) + 9) // 8, "little")]
    for value, form in zip(values, formats, strict=True):
        if isinstance(value, int):
            parts.append(struct.pack(form, value))
        elif value is not None:
            parts += [length_encoded(len(value)), value]
    return b"".join(parts)


def column_payload(type_code: int, flags: int) -> bytes:
    names = b"".join(length_encoded(len(name)) + name for name in (b"def", b"shop", b"t", b"orders", b"c", b"c"))
    return names + b"\x0c" + struct.pack("<HIBHBxx", INT, 20, type_code, flags, 0)


def packets(payloads: Sequence[bytes]) -> Iterator[bytes]:
    """Yields each payload in as many packets as it needs. The packets are numbered from 1."""
    sequence = 1
    for payload in payloads:
        at = 0
        while True:
            part = payload[at : at + limits.PACKET_BYTES_MAX]
            yield len(part).to_bytes(3, "little") + bytes([sequence]) + part
            sequence, at = (sequence + 1) % 256, at + len(part)
            if len(part) < limits.PACKET_BYTES_MAX:
                break


EOF = b"\xfe\0\0\2\0"


def result(rows: Sequence[Sequence[Value]], end: bytes = EOF) -> bytes:
    """Returns the packets of a result with these rows. `end` is the payload of the last packet, for example of an error."""
    heads = [bytes([len(SENT)]), *(column_payload(*each) for each in SENT), EOF]
    return b"".join(packets([*heads, *(row_payload(row) for row in rows), end]))


def in_pieces(data: bytes, sizes: Sequence[int]) -> Callable[[memoryview], int]:
    """Returns a `receive` function that delivers the bytes in pieces of these sizes. After that it fills the space that it gets. It
    returns 0 at the end of the bytes.
    """
    left, waiting = memoryview(data), list(sizes)

    def receive(space: memoryview) -> int:
        nonlocal left
        count = min(len(space), len(left), max(1, waiting.pop(0)) if waiting else len(left))
        space[:count] = left[:count]
        left = left[count:]
        return count

    return receive
