"""Builds valid binlog events as a dump sends them: headers, checksums, end positions, packets. Tests then damage them."""

from __future__ import annotations

import dataclasses
import struct
import uuid
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from sluice.batch_manifest.values import Cascade
from sluice.cdc_engine.binlog.events.table_map import TableMap
from sluice.cdc_engine.contracts import NO_SESSION, Block, Bytes, StatementSession, TableChange, TableVersion
from sluice.cdc_engine.errors import TableStoppedError
from sluice.cdc_engine.parser.scan.scanner import Scanner
from sluice.cdc_engine.position import Position

SERVER = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
TIME = 1_700_000_000
START = Position(epoch=1, file="binlog.000007", offset=4)


@dataclasses.dataclass
class EventFactory:
    """Makes events. Each method returns one whole event. `offset` is the end of the file so far. `seconds` is the time in the headers of
    later events.
    """

    offset: int = 4
    checksum: bool = True
    server_id: int = 9
    seconds: int = TIME

    def event(self, event_type: int, body: bytes, *, flags: int = 0, artificial: bool = False) -> bytes:
        length = 19 + len(body) + (4 if self.checksum else 0)
        if not artificial:
            self.offset += length
        end = 0 if artificial else self.offset & 0xFFFFFFFF
        flags |= 0x20 if artificial else 0
        event = (
            struct.pack("<IBIIIH", 0 if artificial else self.seconds, event_type, self.server_id, length, end, flags)
            + body
        )
        return event + struct.pack("<I", zlib.crc32(event)) if self.checksum else event

    def rotate(self, file: str, offset: int = 4, *, artificial: bool = True) -> bytes:
        event = self.event(4, struct.pack("<Q", offset) + file.encode(), artificial=artificial)
        self.offset = offset
        return event

    def format_description(self, version: bytes = b"8.0.31", *, artificial: bool = False) -> bytes:
        sizes = bytearray(41)
        sizes[1], sizes[18], sizes[22:25], sizes[29:32] = 13, 8, b"\x08\x08\x08", b"\x0a\x0a\x0a"
        body = struct.pack("<H50sIB", 4, version, TIME, 19) + bytes(sizes) + bytes([int(self.checksum)])
        if self.checksum:
            return self.event(15, body, artificial=artificial)
        return self.event(15, body + bytes(4), artificial=artificial)

    def query(self, text: str | bytes, database: str = "shop", status: bytes = b"\x00\x00\x00\x00\x00") -> bytes:
        name = database.encode()
        content = text.encode() if isinstance(text, str) else text
        return self.event(2, struct.pack("<IIBHH", 1, 0, len(name), 0, len(status)) + status + name + b"\0" + content)

    def gtid(self, number: int, server: str = SERVER, *, time_us: int = 0, original_us: int = 0) -> bytes:
        body = b"\0" + uuid.UUID(server).bytes + struct.pack("<qBqq", number, 2, 0, 1)
        if time_us:
            stamp = time_us | (1 << 55 if original_us else 0)
            body += stamp.to_bytes(7, "little") + (original_us.to_bytes(7, "little") if original_us else b"")
        return self.event(33, body)

    def anonymous(self, time_us: int) -> bytes:
        body = b"\0" + bytes(16) + struct.pack("<qBqq", 0, 2, 0, 1) + time_us.to_bytes(7, "little")
        return self.event(34, body)

    def tagged_gtid(
        self, number: int, tag: str, fields: Iterable[tuple[int, bytes]] = (), *, last_needed: int = 0
    ) -> bytes:
        """Returns a GTID event with a tag. `fields` are additional fields by id. The fields for flags, source, number, tag and clocks are
        always present.
        """
        known = {
            0: varlen(1),
            1: b"".join(varlen(byte) for byte in uuid.UUID(SERVER).bytes),
            2: varlen(number << 1),
            3: varlen(len(tag)) + tag.encode(),
            4: varlen(0),
            5: varlen(2),
            **dict(fields),
        }
        content = varlen(last_needed) + b"".join(varlen(field) + known[field] for field in sorted(known))
        size = len(content) + 2
        return self.event(42, varlen(1) + varlen(size if size < 128 else size + 1) + content)

    def mariadb_gtid(self, number: int, domain: int = 0, flags: int = 0) -> bytes:
        return self.event(162, struct.pack("<QIB", number, domain, flags) + bytes(6))

    def table_map(self, table_id: int, table: str = "orders", database: str = "shop") -> bytes:
        head = table_id.to_bytes(6, "little") + b"\x01\x00"
        names = bytes([len(database)]) + database.encode() + b"\0" + bytes([len(table)]) + table.encode() + b"\0"
        return self.event(19, head + names + b"\x01" + b"\x03" + b"\x00" + b"\x00")

    def rows(self, table_id: int, event_type: int = 30, content: bytes = b"\x01\x01\x00\x07\x00\x00\x00") -> bytes:
        extra = b"\x02\x00" if event_type >= 30 else b""
        return self.event(event_type, table_id.to_bytes(6, "little") + b"\x01\x00" + extra + content)

    def rows_query(self, text: str | bytes) -> bytes:
        content = text.encode() if isinstance(text, str) else text
        return self.event(29, bytes([len(content) & 0xFF]) + content)

    def annotate_rows(self, text: str) -> bytes:
        return self.event(160, text.encode())

    def xid(self) -> bytes:
        return self.event(16, struct.pack("<Q", 77))

    def transaction(self, number: int, table_id: int = 5, rows: int = 1) -> list[bytes]:
        head = [self.gtid(number), self.query("BEGIN"), self.table_map(table_id)]
        inserts = [self.rows(table_id) for _ in range(rows)]
        return [*head, *inserts, self.xid()]


def varlen(number: int) -> bytes:
    """Returns an integer in MySQL's serialization: the first byte has one more bit set for each byte that follows."""
    follow = max(0, (number.bit_length() - 1) // 7)
    if follow >= 8:
        return b"\xff" + struct.pack("<Q", number)
    return ((number << (follow + 1)) | ((1 << follow) - 1)).to_bytes(follow + 1, "little")


def packets(events: list[bytes]) -> bytes:
    """Returns the packets that a socket delivers. A large event continues in the next packet."""
    stream = bytearray()
    for event in events:
        payload = b"\0" + event
        for at in range(0, len(payload) + 1, 0xFFFFFF):
            part = payload[at : at + 0xFFFFFF]
            stream += struct.pack("<I", len(part))[:3] + b"\x01" + part
    return bytes(stream)


class NoHistory:
    """A schema history in which the name of a table determines its schema. It records statements. The tables in
    `stopped` cannot continue.
    """

    def __init__(self) -> None:
        self.statements: list[tuple[str, str, int]] = []
        self.stopped: set[str] = set()
        self.for_consumers = False  # Whether rows of a table that cannot continue stay in the stream.
        self.resolved: list[tuple[str, int]] = []
        self.not_undone: set[str] = set()  # Tables of engines without transactions.
        self.changes: tuple[TableChange, ...] = ()

    def cascades(self, database: str, table: str) -> tuple[Cascade, ...]:  # noqa: ARG002  of the contract
        return ()

    def is_undone(self, database: str, table: str) -> bool:  # noqa: ARG002  of the contract
        return table not in self.not_undone

    def follows(self, database: str, table: str) -> bool:  # noqa: ARG002  of the contract
        return False

    def resolve(self, table_map: TableMap, position: Position) -> TableVersion:
        self.resolved.append((table_map.table, position.offset))
        if table_map.table in self.stopped:
            version = TableVersion(database=table_map.database, table=table_map.table, columns=(), stopped=True)
            reported = self.for_consumers and version
            raise TableStoppedError(table_map.database, table_map.table, "SCHEMA_UNKNOWN", "told to", reported or None)
        return TableVersion(database=table_map.database, table=table_map.table, columns=())

    def apply(
        self,
        statement: str,
        default_database: str,
        position: Position,
        session: StatementSession = NO_SESSION,  # noqa: ARG002  part of the contract
    ) -> tuple[TableChange, ...]:
        self.statements.append((statement, default_database, position.offset))
        return self.changes

    def rewind(self, position: Position) -> None:
        """This history stores nothing."""


def not_hidden(database: str, table: str) -> bool:
    return "hidden" not in (database, table)


def scanner(history: NoHistory | None = None, start: Position = START, **options: Any) -> Scanner:
    return Scanner(
        start=start,
        history=history or NoHistory(),
        captured=not_hidden,
        **options,
    )


def as_buffer(data: bytes) -> Bytes:
    return np.frombuffer(data, np.uint8).copy()


def feed(scan: Scanner, events: list[bytes]) -> list[Block]:
    return list(feed_lazily(scan, events))


def feed_lazily(scan: Scanner, events: list[bytes]) -> Iterator[Block]:
    data = packets(events)
    yield from scan.feed(as_buffer(data), 0, len(data))
