"""Builds row events byte by byte, for tests that need an event that no server writes on demand. Their tables have int columns and one text
column.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from sluice.cdc_engine.binlog.type_codes import TypeCode
from sluice.cdc_engine.contracts import Block, Column, RowEventKind, TableVersion
from tests.fix_binlog import block_of

HEADER_BYTES = 19
Row = tuple[int | str | None, ...]

ID = Column(name="id", type_code=TypeCode.LONG, nullable=False, mysql_type="int")
AMOUNT = Column(name="amount", type_code=TypeCode.LONG, mysql_type="int")
NOTE = Column(name="note", type_code=TypeCode.VARCHAR, metadata=80, charset="utf8mb4", mysql_type="varchar(20)")
ORDERS = TableVersion(database="shop", table="orders", columns=(ID, AMOUNT, NOTE), key=("id",), version="v1")
KEYLESS = TableVersion(database="shop", table="log", columns=(ID, AMOUNT, NOTE), version="v1")


def image(row: Row) -> bytes:
    """Returns a row image: a NULL bitmap, then ints of four bytes and texts with one length byte."""
    nulls = sum(1 << index for index, value in enumerate(row) if value is None)
    values = b"".join(_value(value) for value in row if value is not None)
    return nulls.to_bytes((len(row) + 7) // 8, "little") + values


def _value(value: int | str) -> bytes:
    if isinstance(value, int):
        return struct.pack("<i", value)
    data = value.encode("utf-8", "surrogateescape")
    return bytes([len(data)]) + data


def event(
    kind: RowEventKind, images: Sequence[Row], version: int = 2, columns: int = 3, present: int | None = None
) -> bytes:
    """Returns a rows event without a checksum. `present` is its bitmap of columns, or None if all columns are present."""
    bitmap = ((1 << columns) - 1 if present is None else present).to_bytes((columns + 7) // 8, "little")
    extra = struct.pack("<H", 2) if version == 2 else b""
    body = struct.pack("<IHH", 1, 0, 1) + extra + bytes([columns]) + bitmap * (2 if kind is RowEventKind.UPDATE else 1)
    body += b"".join(image(row) for row in images)
    return struct.pack("<IBIIIH", 0, 0, 1, HEADER_BYTES + len(body), 0, 0) + body


def block(
    events: Sequence[tuple[TableVersion, RowEventKind, bytes]],
    start: int = 4,
    file: str = "binlog.000002",
    version: int = 2,
    epoch: int = 1,
) -> Block:
    """Returns a block of these events. The first event begins at `start` of the file, and each event is a second later than the one
    before.
    """
    tables: list[TableVersion] = []
    entries, data = [], b""
    for number, (table, kind, content) in enumerate(events):
        if table not in tables:
            tables.append(table)
        entries.append(
            (len(data), len(content), kind, version, tables.index(table), start + len(data), (number + 1) * 1_000_000)
        )
        data += content
    return block_of(data, file, epoch, tables, entries)
