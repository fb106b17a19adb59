"""Sends a server's changes through parts of the engine, up to a staged batch: parser, schema history, sink, store, staging. Dagster and
Spark are not needed.

`Pipeline` reads the schema at the position at which it begins, like an engine that reads a server for the first time. A separate parser
reads everything that is written after that position from the server's dump. The result is staged files.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pymysql

from sluice.batch_manifest.values import ChangesSegment
from sluice.cdc_engine.contracts import Batch
from sluice.cdc_engine.parser.start_position import StartChoice
from sluice.cdc_engine.parser.stream.event_parser import EventParser, StreamRules
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.sink.event_sink import EventSink
from sluice.cdc_engine.sink.table_filter import TableFilter
from sluice.cdc_engine.source.server import Source
from sluice.cdc_engine.staging import StagingResult, StagingRules, stage
from sluice.cdc_engine.store.memory_store import MemoryEventStore
from sluice.cdc_engine.table_meta.change.policy import SchemaDecisions
from sluice.cdc_engine.table_meta.history.history import TableHistory
from sluice.cdc_engine.table_meta.history.source.schema_snapshot import stable_snapshot
from sluice.console.toolchain.database.server import DatabaseServer
from tests.staging.staged_rows import read_rows
from tests.waiting import wait_for

RING_BYTES, RING_EVENTS = 64 << 20, 1 << 20
SERVERS = ("mysql57", "mysql80", "mysql9", "mariadb1011", "mariadb114")


@dataclasses.dataclass
class Pipeline:
    """Captures one database from the position `begin` on. The schema history has the tables' schemas at this position."""

    server: DatabaseServer
    database: str
    folder: Path
    begin: Position
    deliveries: int = 0
    review: SchemaDecisions | None = None

    @classmethod
    def of(cls, server: DatabaseServer, database: str, folder: Path) -> Pipeline:
        """Returns a pipeline that begins at the current end of the binlog, with the tables that the database has now."""
        with server.connect() as connection:
            snapshot, begin = stable_snapshot(
                connection, lambda name, _: name == database, lambda: binlog_end(connection)
            )
        made = cls(server, database, folder, begin)
        made._history().seed(snapshot, begin)
        return made

    def staged(self, **rules: Any) -> StagingResult:
        """Returns everything that was written since `begin` as one staged batch. `rules` are those of `StagingRules`."""
        self.deliveries += 1
        return stage(self.batch(), "fidelity", self.deliveries, self.folder / "staging", StagingRules(**rules))

    def batch(self) -> Batch:
        return self._read().get(RING_BYTES, RING_EVENTS)

    def batches(self, **rules: Any) -> Iterator[StagingResult]:
        """Returns everything that was written since `begin`, in the batches into which the store divides it."""
        store = self._read()
        while not (batch := store.get(RING_BYTES, RING_EVENTS)).empty:
            self.deliveries += 1
            yield stage(batch, "fidelity", self.deliveries, self.folder / "staging", StagingRules(**rules))

    def _read(self) -> MemoryEventStore:
        store = MemoryEventStore(
            self.folder / f"spill-{self.deliveries}", bytes_max=RING_BYTES, events_max=RING_EVENTS, start=self.begin
        )
        tables = TableFilter(rf"{self.database}\..*", "")
        parser = EventParser(
            Source(destination="fidelity", host="127.0.0.1", port=self.server.port, user="root"),
            StreamRules(choice=StartChoice()),
            sink=EventSink(store, tables),
            history=self._history(),
            captured=tables.keeps,
        )
        with self.server.connect() as connection:
            end = binlog_end(connection)

        def arrived() -> bool:
            if parser.last_error is not None:
                raise parser.last_error
            return parser.position is not None and parser.position.order_key >= end.order_key

        parser.start(self.begin)
        try:
            wait_for(f"the stream up to {end}", arrived)
        finally:
            parser.stop()
        return store

    def _history(self) -> TableHistory:
        return TableHistory(self.folder / "schema.jsonl", lambda name, _: name == self.database, self.review)


def binlog_end(connection: pymysql.Connection[Any]) -> Position:
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@version LIKE '9.%'")
        ((newest,),) = cursor.fetchall()
        cursor.execute("SHOW BINARY LOG STATUS" if newest else "SHOW MASTER STATUS")
        row = cursor.fetchone()
    assert row is not None
    return Position(epoch=1, file=str(row[0]), offset=int(row[1]))


def images(staged: StagingResult, table: str) -> pa.Table:
    """Returns the staged row images of a table in stream order, from all its segments. Fails if the table stopped."""
    assert not staged.stopped, [f"{each.state}: {each.reason}" for each in staged.stopped]
    segments = [
        segment
        for each in staged.manifest.tables
        if each.table == table
        for segment in each.segments
        if isinstance(segment, ChangesSegment)
    ]
    return pa.concat_tables([read_rows(staged.path, segment) for segment in segments], promote_options="default")


def run(server: DatabaseServer, *statements: str, **session: Any) -> None:
    """Runs the statements on one connection with relaxed value checks, in UTC."""
    with server.connect(**session) as connection, connection.cursor() as cursor:
        for statement in ("SET sql_mode = '', time_zone = '+00:00'", *statements):
            cursor.execute(statement)


@contextlib.contextmanager
def row_metadata(server: DatabaseServer, metadata: str) -> Iterator[None]:
    """Sets `binlog_row_metadata` of the server until the block ends. A server without this variable (MySQL 5.7) keeps its own default."""
    with server.connect() as connection, connection.cursor() as cursor:
        if not cursor.execute("SHOW GLOBAL VARIABLES LIKE 'binlog_row_metadata'"):
            yield
            return
        (before,) = (value for _, value in cursor.fetchall())
        cursor.execute(f"SET GLOBAL binlog_row_metadata = {metadata}")
        try:
            yield
        finally:
            cursor.execute(f"SET GLOBAL binlog_row_metadata = {before}")
