"""Writes the body of a table map event from MySQL's description of the format. It is the inverse of the parser, and shares no code with
it.
"""

from __future__ import annotations

import dataclasses

from sluice.cdc_engine.binlog.events.table_map import TableMap, parse_table_map
from sluice.cdc_engine.binlog.type_codes import TypeCode
from sluice.cdc_engine.table_meta.schema import TableSchema


def packed(number: int) -> bytes:
    """Returns a length-encoded integer."""
    if number < 0xFB:
        return bytes([number])
    for first, size in ((0xFC, 2), (0xFD, 3)):
        if number < 1 << 8 * size:
            return bytes([first]) + number.to_bytes(size, "little")
    return b"\xfe" + number.to_bytes(8, "little")


def packed_text(text: bytes) -> bytes:
    return packed(len(text)) + text


def bitmap(bits: list[bool], *, lowest_first: bool) -> bytes:
    octets = bytearray((len(bits) + 7) // 8)
    for index, bit in enumerate(bits):
        bit_index = index % 8 if lowest_first else 7 - index % 8
        octets[index // 8] |= bit << bit_index
    return bytes(octets)


@dataclasses.dataclass
class ColumnBytes:
    """A column as it is in the event: its type byte and the bytes of its metadata."""

    type_byte: int
    metadata: bytes = b""
    nullable: bool = True


def column_bytes(code: int, metadata: int, *, nullable: bool = True) -> ColumnBytes:
    """Converts a type code and its metadata from the integers of the parser to the bytes of the event."""
    if code in {TypeCode.ENUM, TypeCode.SET}:
        return ColumnBytes(TypeCode.STRING, bytes([code, metadata]), nullable)
    if code == TypeCode.STRING:
        return ColumnBytes(code, bytes([code ^ (metadata >> 4 & 0x30), metadata & 0xFF]), nullable)
    if code == TypeCode.NEWDECIMAL:
        return ColumnBytes(code, metadata.to_bytes(2, "big"), nullable)
    if code in {TypeCode.VARCHAR, TypeCode.BIT}:
        return ColumnBytes(code, metadata.to_bytes(2, "little"), nullable)
    one_byte = {
        *(TypeCode.FLOAT, TypeCode.DOUBLE, TypeCode.BLOB, TypeCode.JSON, TypeCode.GEOMETRY),
        *(TypeCode.TIME2, TypeCode.DATETIME2, TypeCode.TIMESTAMP2),
    }
    return ColumnBytes(code, bytes([metadata]) if code in one_byte else b"", nullable)


def table_map_body(
    database: str, table: str, columns: list[ColumnBytes], fields: list[tuple[int, bytes]] | None = None
) -> bytes:
    names = b"".join(bytes([len(name.encode())]) + name.encode() + b"\0" for name in (database, table))
    metadata = b"".join(column.metadata for column in columns)
    return b"".join(
        (
            (77).to_bytes(6, "little"),
            b"\x01\x00",
            names,
            packed(len(columns)),
            bytes(column.type_byte for column in columns),
            packed_text(metadata),
            bitmap([column.nullable for column in columns], lowest_first=True),
            *(bytes([kind]) + packed_text(value) for kind, value in fields or []),
        )
    )


def table_map_of(schema: TableSchema, fields: list[tuple[int, bytes]] | None = None) -> TableMap:
    """Returns the table map that a server would send for this table. Of the optional fields, it has only `fields`."""
    return parse_table_map(table_map_bytes(schema, fields))


def table_map_bytes(schema: TableSchema, fields: list[tuple[int, bytes]] | None = None) -> bytes:
    """Returns the body of the event that `table_map_of` parses."""
    columns = [
        column_bytes(column.type_code, column.metadata, nullable=column.nullable) for column in schema.version().columns
    ]
    return table_map_body(schema.database, schema.table, columns, fields)
