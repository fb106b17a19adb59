"""Runs statements on a real server, then passes the resulting binlog to a schema history, event by event."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import struct
from collections.abc import Iterator
from typing import Any

import pymysql

from sluice.cdc_engine.binlog.events.control import FileFormat, parse_format_description, parse_query
from sluice.cdc_engine.binlog.events.table_map import TableMap, parse_table_map
from sluice.cdc_engine.contracts import TableChange, TableVersion
from sluice.cdc_engine.errors import TableStoppedError
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.table_meta.history.history import TableHistory
from sluice.cdc_engine.table_meta.history.source.schema_snapshot import SchemaSnapshot, read_snapshot
from sluice.cdc_engine.table_meta.schema import TableSchema
from sluice.console.toolchain.database.server import DatabaseServer

QUERY, TABLE_MAP, HEADER_BYTES, CHECKSUM_BYTES = 2, 19, 19, 4
MAGIC = b"\xfebin"


@contextlib.contextmanager
def row_metadata(server: DatabaseServer, mode: str) -> Iterator[None]:
    """Sets `binlog_row_metadata` of the server to `mode` until the block ends."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@GLOBAL.binlog_row_metadata")
        (before,) = cursor.fetchall()[0]
        cursor.execute(f"SET GLOBAL binlog_row_metadata = {mode}")
        try:
            yield
        finally:
            cursor.execute(f"SET GLOBAL binlog_row_metadata = {before}")


@dataclasses.dataclass
class Scene:
    """Runs statements in a new database, and replays the binlog that they wrote. `after` has the schema of the database after each
    statement.
    """

    server: DatabaseServer
    database: str
    connection: pymysql.Connection[Any]
    file: str
    start: int
    before: SchemaSnapshot
    after: list[tuple[Position, str, tuple[TableSchema, ...]]] = dataclasses.field(default_factory=list)

    def captured(self, database: str, _table: str) -> bool:
        return database == self.database

    def run(self, statement: str) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(statement)
        tables = read_snapshot(self.connection, self.captured).tables
        self.after.append((self.now(), statement, tables))

    def now(self, watching: pymysql.Connection[Any] | None = None) -> Position:
        """Returns the end of the binlog. `watching` replaces the session of the scene, if a statement has changed that session."""
        return _position(*_end_of_binlog(watching or self.connection))

    def replay(self, history: TableHistory) -> Replayed:
        """Replays all events since the scene began, in their order."""
        replayed = Replayed([], [], [])
        logs = file_format(self.server, self.file).logs_timestamps
        for event_type, end, event in events_since(self.server, self.file, self.start):
            position = _position(self.file, end)
            if event_type == QUERY:
                query = parse_query(event, 0, logs_timestamps=logs)
                replayed.changes += history.apply(query.text, query.database, position, query.session)
            elif (
                event_type == TABLE_MAP
                and (table_map := parse_table_map(event[HEADER_BYTES:])).database == self.database
            ):
                try:
                    replayed.versions.append((table_map, history.resolve(table_map, position)))
                except TableStoppedError as error:
                    replayed.stopped.append(error)
        return replayed


@dataclasses.dataclass
class Replayed:
    changes: list[TableChange]
    versions: list[tuple[TableMap, TableVersion]]
    stopped: list[TableStoppedError]


@contextlib.contextmanager
def scene(server: DatabaseServer, database: str, charset: str = "utf8mb4") -> Iterator[Scene]:
    """Creates a new database. Before this, reads the schema of the server and records the end of its binlog."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE IF EXISTS {database}")
        cursor.execute("FLUSH BINARY LOGS")
        file, start = _end_of_binlog(connection)
        made = Scene(server, database, connection, file, start, read_snapshot(connection, lambda *_: False))
        cursor.execute(f"CREATE DATABASE {database} CHARACTER SET {charset}")
        connection.select_db(database)
        yield made


def events_since(server: DatabaseServer, file: str, start: int) -> Iterator[tuple[int, int, bytes]]:
    """Yields the type, end offset and bytes of each event in the binlog file, without the checksum. End offsets are computed, because
    MariaDB writes some of them as 0.
    """
    at = start
    for event in _events(server, file, start):
        at += len(event)
        yield event[4], at, event[:-CHECKSUM_BYTES]


def _events(server: DatabaseServer, file: str, at: int) -> Iterator[bytes]:
    data = (server.data_folder / file).read_bytes()
    while at < len(data):
        size = struct.unpack_from("<I", data, at + 9)[0]
        yield data[at : at + size]
        at += size


def file_format(server: DatabaseServer, file: str) -> FileFormat:
    """Returns the format that the file's first event describes."""
    (event,) = itertools.islice(_events(server, file, len(MAGIC)), 1)
    return parse_format_description(event)


def _end_of_binlog(connection: pymysql.Connection[Any]) -> tuple[str, int]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@version LIKE '9.%'")
        ((newest,),) = cursor.fetchall()
        cursor.execute("SHOW BINARY LOG STATUS" if newest else "SHOW MASTER STATUS")
        file, offset, *_ = cursor.fetchall()[0]
        return file, offset


def _position(file: str, offset: int) -> Position:
    return Position(epoch=1, file=file, offset=offset)
