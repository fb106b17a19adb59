"""Reads row events of a real server into a `contracts.Block`, without the engine's scanner. Tests of decoding and staging use it."""

from __future__ import annotations

import dataclasses
import re
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pymysql

from sluice.cdc_engine.binlog.events.table_map import parse_table_map
from sluice.cdc_engine.contracts import FRAME, Block, Column, RowEventKind, TableVersion
from sluice.console.toolchain.database.server import DatabaseServer

TABLE_MAP, CHECKSUM_BYTES, HEADER_BYTES = 19, 4, 19
# By event type: the kind of the row event, and the version of its rows header.
ROWS = {
    23: (RowEventKind.INSERT, 1),
    24: (RowEventKind.UPDATE, 1),
    25: (RowEventKind.DELETE, 1),
    30: (RowEventKind.INSERT, 2),
    31: (RowEventKind.UPDATE, 2),
    32: (RowEventKind.DELETE, 2),
    39: (RowEventKind.UPDATE, 3),
}
LABEL = re.compile(r"'((?:[^']|'')*)'")
COLUMNS = (
    "SELECT column_name, column_type, character_set_name, is_nullable, column_key FROM information_schema.columns "
    "WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position"
)


@dataclasses.dataclass
class Recording:
    """Remembers a position in a server's binlog. `block` returns the row events that the server wrote after it."""

    server: DatabaseServer
    file: str
    offset: int

    @classmethod
    def begin(cls, server: DatabaseServer) -> Recording:
        file, offset = _end(server)
        return cls(server, file, offset)

    def block(self, epoch: int = 1) -> Block:
        """Returns all row events since `begin`. They must be in one binlog file. The schemas of their tables are the current ones in
        information_schema.
        """
        file, end = _end(self.server)
        assert file == self.file, "the binlog was rotated meanwhile"
        path = next(self.server.data_folder.parent.rglob(file))
        data = path.read_bytes()[self.offset : end]
        return framed(data, self.file, self.offset, epoch, self.server)


def _end(server: DatabaseServer) -> tuple[str, int]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW MASTER STATUS")
        row = cursor.fetchone()
    assert row is not None
    return str(row[0]), int(row[1])


def framed(data: bytes, file: str, offset: int, epoch: int, server: DatabaseServer) -> Block:
    """Returns a block of the row events in `data`, which starts at `offset` of `file`."""
    refs: dict[int, int] = {}
    tables: list[TableVersion] = []
    events: list[tuple[int, int, int, int, int, int, int]] = []
    at = 0
    while at < len(data):
        code, length = data[at + 4], int.from_bytes(data[at + 9 : at + 13], "little")
        assert zlib.crc32(data[at : at + length - 4]) == int.from_bytes(data[at + length - 4 : at + length], "little")
        body = data[at + HEADER_BYTES : at + length - CHECKSUM_BYTES]
        if code == TABLE_MAP:
            refs[int.from_bytes(body[:6], "little")] = len(tables)
            tables.append(table_version(server, body))
        elif code in ROWS:
            kind, version = ROWS[code]
            seconds = int.from_bytes(data[at : at + 4], "little")
            table = refs[int.from_bytes(body[:6], "little")]
            events.append((at, length - CHECKSUM_BYTES, kind, version, table, offset + at, seconds * 1_000_000))
        else:
            assert code not in (38, 40, 165, 166, 167, 169, 170, 171), f"rows in an event of type {code}"
        at += length
    return block_of(data, file, epoch, tables, events)


def block_of(
    data: bytes, file: str, epoch: int, tables: list[TableVersion], events: Sequence[tuple[int, ...]]
) -> Block:
    """Returns a block of events, each given as (offset, length, kind, version, table, position, time). They are one transaction, which
    ends with the last event.
    """
    arrays = np.array(events, np.int64).reshape(-1, 7).T
    end = int(arrays[5][-1] + arrays[1][-1]) if events else 0
    last_time = int(arrays[6][-1]) if events else 0
    return Block(
        epoch=epoch,
        file=file,
        server_uuid="",
        buffer=np.frombuffer(data, np.uint8),
        tables=tables,
        event_offset=arrays[0],
        event_length=arrays[1],
        event_kind=arrays[2].astype(np.int8),
        event_version=arrays[3].astype(np.int8),
        event_table=arrays[4].astype(np.int32),
        event_position=arrays[5],
        event_time_us=arrays[6],
        event_transaction_offset=arrays[5],
        transaction_events=np.array([len(events)], np.int64),
        transaction_end=np.array([end], np.int64),
        transaction_time_us=np.array([last_time], np.int64),
        transaction_source=np.array([-1], np.int32),
        transaction_number=np.array([0], np.int64),
        gtid_sources=[],
        start_gtid_set="",
        transaction_frame=np.zeros(1, FRAME),
    )


def table_version(server: DatabaseServer, body: bytes) -> TableVersion:
    """Returns the table in the body of a table map event. Types and metadata come from the event, and names and declared types from
    information_schema.
    """
    table_map = parse_table_map(body)
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(COLUMNS, (table_map.database, table_map.table))
        rows = list(cursor.fetchall())
    declared = [
        _column(row, code, metadata)
        for row, code, metadata in zip(rows, table_map.type_codes, table_map.metadata, strict=True)
    ]
    key = tuple(row[0] for row in rows if row[4] == "PRI")
    return TableVersion(
        database=table_map.database, table=table_map.table, columns=tuple(declared), key=key, version="1"
    )


def _column(row: tuple[Any, ...], code: int, metadata: int) -> Column:
    name, declared, charset, nullable, _ = row
    labels = (
        [label.replace("''", "'") for label in LABEL.findall(declared)] if declared.startswith(("enum", "set")) else []
    )
    return Column(
        name=name,
        type_code=int(code),
        metadata=metadata,
        unsigned="unsigned" in declared,
        charset=charset or "",
        labels=tuple(labels),
        nullable=nullable == "YES",
        mysql_type=declared,
    )


def execute(connection: pymysql.Connection[Any], *statements: str) -> None:
    """Runs the statements one after the other."""
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
