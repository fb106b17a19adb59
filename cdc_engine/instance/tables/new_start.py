"""Starts a destination again after its position was lost: begins at the source's current position, and re-snapshots all tables. Called by
`engine_acts`.

The changes between the lost position and the new start are unknown. So every table is re-snapshotted, and earlier buffered changes are
discarded, because the changes after them are missing. First the snapshots are requested, then the schema history restarts, and last the
cursor moves. After a crash between these writes, the position is still lost, and the next attempt repeats all three writes.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import structlog

from sluice.cdc_engine.config import DestinationConfig
from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.errors import PositionLostError
from sluice.cdc_engine.meta.ledger import Ledger
from sluice.cdc_engine.meta.manager import MetaManager
from sluice.cdc_engine.meta.resume_requests import begin_done, new_start_requested
from sluice.cdc_engine.parser.connection import SourceConnection
from sluice.cdc_engine.parser.server_facts import read_facts
from sluice.cdc_engine.parser.source_check import sees_objects
from sluice.cdc_engine.parser.start_position import Epochs, Lost, StartChoice, decide_start
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.sink.table_filter import TableFilter
from sluice.cdc_engine.snapshot.record import wanted
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.source.server import Source
from sluice.cdc_engine.store.files.forget import forget_events
from sluice.cdc_engine.store.prepared import forget_prepared
from sluice.cdc_engine.table_meta.history.source.schema_snapshot import SchemaSnapshot, stable_snapshot
from sluice.cdc_engine.table_meta.schema import is_of_users

WHY = "the position was lost, so Sluice does not know which rows have changed since then"

log = structlog.get_logger()


@dataclasses.dataclass(frozen=True, kw_only=True)
class NewStartDependencies:
    """The parts and callbacks of the engine that a new start uses. `seed` restarts the schema history with the schemas at a position."""

    config: DestinationConfig
    directory: Path
    source: Source
    meta: MetaManager
    seed: Callable[[SchemaSnapshot, Position], None]


def is_wanted(config: DestinationConfig, directory: Path, ledger: Ledger) -> bool:
    """Returns whether an operator requested a new start, or conf/ allows a new start without a request (`snapshot: when_needed`)."""
    return new_start_requested(directory, ledger.epoch) or config.snapshot == "when_needed"


def begin(dependencies: NewStartDependencies) -> Position:
    """Starts a destination whose position is lost at the source's current position, and returns this position. Call it only while the
    stream is not read and no batch is in flight. If it raises a SluiceError, the destination's position remains lost, and `begin` can be
    called again.
    """
    snapshot, position = _schemas_now(dependencies)
    captured = TableFilter(dependencies.config.include, dependencies.config.exclude)
    tables = [each.version() for each in snapshot.tables if captured.keeps(each.database, each.table)]
    want_all(SnapshotRecords(dependencies.directory), tables, position, dependencies.meta.ledger)
    forget_prepared(dependencies.directory)
    forget_events(dependencies.directory)
    dependencies.seed(snapshot, position)
    dependencies.meta.update(lambda ledger: ledger.set_cursor(position))
    begin_done(dependencies.directory)
    log.warning(
        "destination_started_again", destination=dependencies.config.name, position=str(position), tables=len(tables)
    )
    return position


def want_all(records: SnapshotRecords, tables: Iterable[TableVersion], position: Position, ledger: Ledger) -> None:
    """Requests a snapshot of each table in `tables`. Each snapshot buffers only changes after `position`. `ledger` is the ledger before the
    new start. It shows up to which position the lake has a table's changes: the table's stop, or the lost cursor. If the snapshot is
    canceled, the table stops at this position.
    """
    for table in tables:
        there, stop = records.get(table.name), ledger.stopped(table.database, table.table)
        if there is None or not there.is_open:
            since = stop.position if stop is not None else ledger.cursor or position
            records.begin(
                dataclasses.replace(wanted(table.name, since, time.time()), buffered_after=position.order_key)
            )
        else:
            records.update(table.name, lambda now: now.again(WHY, buffered_after=position.order_key))


def _schemas_now(dependencies: NewStartDependencies) -> tuple[SchemaSnapshot, Position]:
    tables = TableFilter(dependencies.config.include, dependencies.config.exclude)
    connection = SourceConnection(dependencies.source)
    try:
        snapshot, position = connection.query(
            lambda session: stable_snapshot(
                session,
                lambda database, table: is_of_users(database) or tables.keeps(database, table),
                lambda: _end(connection, dependencies.meta.ledger.epoch),
                with_objects=sees_objects(read_facts(connection)),
            )
        )
    finally:
        connection.close()
    return snapshot, position


def _end(connection: Any, epoch: int) -> Position:
    start = decide_start(None, StartChoice(), read_facts(connection, ""), Epochs(highest=epoch))
    if isinstance(start, Lost):
        raise PositionLostError(str(start))
    return dataclasses.replace(start.position, epoch=epoch + 1)
