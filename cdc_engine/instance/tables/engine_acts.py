"""Executes operators' requests while no batch is in flight: resumes tables, re-snapshots tables, and starts again after a lost position.

`engine` calls this module before each batch. `acts` stores a record for each request of an operator. The setting `snapshot` of conf/ may
cause re-snapshots without a request.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from contextlib import AbstractContextManager
from pathlib import Path

import structlog

from sluice.cdc_engine.config import DestinationConfig
from sluice.cdc_engine.contracts import StoppedTable
from sluice.cdc_engine.destination_files.lake_tables import LakeTables
from sluice.cdc_engine.errors import MetaError, SourceConnectionError
from sluice.cdc_engine.ha.leases import RUN_LOCK, open_lock
from sluice.cdc_engine.instance.answers import is_no_table_now, schema_at
from sluice.cdc_engine.instance.batches.hand_out import HandOut
from sluice.cdc_engine.instance.parts import EngineParts
from sluice.cdc_engine.instance.stored import only_copy
from sluice.cdc_engine.instance.tables import filter_change, new_start, resnapshot, resume, snapshot_requests
from sluice.cdc_engine.meta.resume_requests import ResumeKind, ResumeRequest, requests
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.sink.table_filter import TableFilter
from sluice.cdc_engine.snapshot.record import SnapshotRecord
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.states import EngineState
from sluice.cdc_engine.store.files.forget import forget_events
from sluice.cdc_engine.table_meta.change.policy import DROP_TABLE
from sluice.cdc_engine.table_meta.history.kept.known_schemas import was_dropped
from sluice.cdc_engine.table_meta.schema import TableSchema

log = structlog.get_logger()

# At this interval in seconds, the engine removes the records of ended snapshots whose tables are not captured any more. A record is kept
# for at least this time after the end of its snapshot. Afterwards, no process reads the record.
FORGET_SECONDS = 3600.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Steering:
    """The parts of a started engine that this module uses. `still` is the lock to hold while the parser is stopped or started."""

    parts: EngineParts
    hand_out: HandOut
    still: AbstractContextManager[object]


class EngineActs:
    """Executes the operators' requests and the due re-snapshots of one destination. A re-snapshot is due if a stopped table needs it and
    conf/ allows it. Without a request, a call only reads a few files.
    """

    def __init__(self, config: DestinationConfig, directory: Path) -> None:
        self._config, self._directory = config, directory
        self._retakes = resnapshot.Resnapshots(config, SnapshotRecords(directory))
        self._waits_for, self._forget_at = "", 0.0
        self._snapshots: tuple[SnapshotRecord, ...] = ()
        self._open: tuple[SnapshotRecord, ...] = ()  # The open snapshots of `_snapshots`.

    def carry_out(self, state: EngineState, steering: Steering) -> None:
        """Executes the requests and the due re-snapshots that the engine's state allows. If the source does not answer, a later call tries
        again.
        """
        if state == EngineState.POSITION_LOST:
            self._restart(steering)
        elif state == EngineState.RUNNING:
            self._take_up_tables(steering)
            self._end_dropped(steering)
            self._forget_snapshots(steering.parts)

    def _restart(self, steering: Steering) -> None:
        """If an operator or conf/ requested a new start after a lost position, starts the stream at the source's current position and
        re-snapshots all tables.
        """
        if not new_start.is_wanted(self._config, self._directory, steering.parts.meta.ledger):
            return
        parts = steering.parts
        dependencies = new_start.NewStartDependencies(
            config=self._config,
            directory=self._directory,
            source=parts.source,
            meta=parts.meta,
            seed=parts.history.seed,
        )

        def begin() -> None:
            with steering.still:
                parts.parser.stop()
                position = new_start.begin(dependencies)
                parts.store.start_at(position)
                if parts.window is not None:
                    parts.window.begin_at(position)
                parts.parser.start(position)

        try:
            steering.hand_out.while_idle(begin)
        except SourceConnectionError as error:
            log.warning("destination_not_started_again_yet", destination=self._config.name, reason=str(error))

    def _end_dropped(self, steering: Steering) -> None:
        """Cancels the open snapshots of tables that were dropped or renamed before the cursor, because the source has no rows to read.
        Leaves stopped tables to `_take_up_tables`.

        If a table was renamed during its snapshot, and the new name has stopped for this reason, the snapshot stays open. The lake lacks
        rows of the old name, so they must not be moved to the new name. `run_batch` refuses the move as long as the snapshot is open.
        """
        parts, records = steering.parts, SnapshotRecords(self._directory)
        every = records.all()
        if every is not self._snapshots:  # The tuple stays the same object while no record changes.
            self._snapshots, self._open = every, tuple(each for each in every if each.is_open)
        ledger = parts.meta.ledger
        if ledger.cursor is None or not self._open or not (names := parts.history.names):
            return
        gone = [
            each
            for each in self._open
            if each.name not in names
            and ledger.stopped(each.database, each.table) is None
            and was_dropped(parts.history.state(each.database, each.table, ledger.cursor))
            and not any(f"renamed from {each.name} while" in stop.reason for stop in ledger.stopped_tables)
        ]

        def stop_deleted(record: SnapshotRecord) -> None:
            """Stops a dropped table before its snapshot is canceled, if the policy is `drop_table: apply` and the lake has the table. The
            deletion of its rows is among the buffered changes, which are removed with the snapshot. A resume reads the deletion again.
            """
            policy = self._config.schema_policy(record.database, record.table)[DROP_TABLE]
            if policy == "apply" and record.since is not None and LakeTables(self._directory).kept(record.name):
                parts.meta.update(snapshot_requests.canceled_stop(record, record.since))

        if gone:
            lock = open_lock(self._directory, RUN_LOCK)
            steering.hand_out.while_idle(lambda: snapshot_requests.end_dropped(gone, records, lock, stop_deleted))

    def _forget_snapshots(self, parts: EngineParts) -> None:
        """Every FORGET_SECONDS, removes the records of ended snapshots whose tables are not captured any more, for example because they
        were dropped.
        """
        if time.monotonic() < self._forget_at or not (names := parts.history.names):
            return
        self._forget_at = time.monotonic() + FORGET_SECONDS
        try:
            # Keeps the records of stopped tables, which tell whether a canceled snapshot is still necessary.
            stopped = {stop.name for stop in parts.meta.ledger.stopped_tables}
            forgotten = SnapshotRecords(self._directory).forget_ended(names | stopped, time.time() - FORGET_SECONDS)
        except MetaError as error:
            log.warning("snapshot_records_not_removed", destination=self._config.name, reason=str(error))
            return
        if forgotten:
            log.info("snapshot_records_removed", destination=self._config.name, tables=len(forgotten))

    def _take_up_tables(self, steering: Steering) -> None:
        """Executes the operators' requests about stopped tables and snapshots, and the re-snapshots that stopped tables need and conf/
        allows. While a batch is in flight, does nothing.
        """
        wanted, due = requests(self._directory), self._retakes.due(steering.parts.meta.ledger.stopped_tables)
        if not wanted and not due:
            return
        try:
            steering.hand_out.while_idle(lambda: self._fulfil(wanted, due, steering))
        # Raises no error, so that batches are still handed out while the source does not answer. A later call tries again.
        except SourceConnectionError as error:
            log.warning("tables_not_resumed_yet", destination=self._config.name, reason=str(error))

    def _fulfil(self, wanted: tuple[ResumeRequest, ...], due: tuple[StoppedTable, ...], steering: Steering) -> None:
        """Executes the operators' requests about single tables (`wanted`), and re-snapshots the stopped tables in `due`. Called while no
        batch is in flight.

        All requests except the cancellation of a snapshot make the engine read the stream again from the cursor. If the source has purged
        changes that only the store still has, a second reading would lack these changes. Then all requests except cancellations wait until
        the changes have been handed out.
        """
        parts, lake = steering.parts, LakeTables(self._directory)
        if self._must_wait(wanted, due, parts):
            wanted, due = tuple(each for each in wanted if each.kind is ResumeKind.CANCEL), ()
        taken: list[str] = []

        def stop_stream(table: str) -> None:
            with steering.still:
                # Stops the parser first, because only the parser may change the schema history while it runs.
                parts.parser.stop()
            # Removes the stored events, because they lack the table's rows. After a crash, no engine may continue from them.
            forget_events(self._directory)
            taken.append(table)

        def resnapshot(schema: TableSchema, position: Position) -> None:
            stop_stream(f"{schema.database}.{schema.table}")
            parts.history.resnapshot(schema, position)

        def forget_dropped(stop: StoppedTable, position: Position) -> bool:
            if not was_dropped(parts.history.state(stop.database, stop.table, position)):
                return False
            stop_stream(stop.name)
            parts.history.forget_dropped((stop.database, stop.table), position)
            return True

        dependencies = snapshot_requests.RequestDependencies(
            meta=parts.meta,
            records=SnapshotRecords(self._directory),
            schema=functools.partial(schema_of_stopped, parts),
            resnapshot=resnapshot,
            has_rows=lambda name: bool(lake.kept(name)),
            forget_dropped=forget_dropped,
            is_no_table=lambda stop: is_no_table_now(parts.source, stop.database, stop.table),
            run_lock=lambda: open_lock(self._directory, RUN_LOCK),
            is_captured=TableFilter(self._config.include, self._config.exclude).keeps,
        )
        try:
            snapshot_requests.fulfil(wanted, dependencies)
            self._retakes.take_up(due, dependencies)
        finally:
            if taken:
                cursor = parts.meta.ledger.cursor
                filter_change.take_rules(self._config, self._directory, parts.policies, set(taken), cursor)
                steering.hand_out.read_again()
        requested = [each for each in wanted if each.kind is ResumeKind.RESUME]
        if not requested:
            return
        resumed = filter_change.may_resume(self._config, self._directory, parts.policies, requested, parts.meta)
        if resumed:
            query_facts = functools.partial(resume.facts_of, parts.source)
            resume.take_up(resumed, parts.meta, query_facts, steering.hand_out.read_again, self._directory)

    def _must_wait(self, wanted: tuple[ResumeRequest, ...], due: tuple[StoppedTable, ...], parts: EngineParts) -> bool:
        reads_again = bool(due) or any(each.kind is not ResumeKind.CANCEL for each in wanted)
        why = only_copy(self._config, parts.source, parts.meta, self._directory) if reads_again else ""
        if why and why != self._waits_for:
            log.warning("tables_wait_for_stored_events", destination=self._config.name, reason=why)
        self._waits_for = why
        return bool(why)


def schema_of_stopped(parts: EngineParts, stop: StoppedTable, position: Position) -> TableSchema | None:
    """Returns the schema of a stopped table at a position. Returns None if the schema is unknown, if the table was dropped, or if its
    storage engine, such as BLACKHOLE, does not store rows in the table (`rows_elsewhere`). Raises SourceConnectionError if the source must
    be queried and does not answer.
    """
    there = parts.history.state(stop.database, stop.table, position)
    query_schema = functools.partial(schema_at, parts.source, stop.database, stop.table, str(position))
    return resnapshot.schema_after(stop, there, query_schema)
