"""Executes the operators' requests that only the engine can execute: to re-snapshot a stopped table from the cursor on, and to cancel a
snapshot.

`engine_acts` calls this module while no batch is in flight or being staged. The request's record is removed only after the request was
executed. So after a crash before the removal, the request is executed again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import structlog

from sluice.cdc_engine.contracts import StoppedTable
from sluice.cdc_engine.errors import ActRefusedError
from sluice.cdc_engine.ha.leases import Lock
from sluice.cdc_engine.instance.tables import resnapshot
from sluice.cdc_engine.meta.ledger import Ledger
from sluice.cdc_engine.meta.resume_requests import ResumeKind, ResumeRequest
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.snapshot.record import SnapshotRecord
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.states import TableState

UNKNOWN = (
    "the columns of the table at the stream's position are unknown: name them with `sluice schema resolve`, then start the snapshot again "
    "with `sluice snapshot start`. If the table's storage engine is MERGE, BLACKHOLE, FEDERATED, CONNECT or SPIDER, its row events do not "
    "describe its rows: exclude the table instead"
)

NOT_CAPTURED = (
    "conf/ does not capture the table any more, so its rows are not read: include the table in conf/, or end the snapshot with `sluice "
    "snapshot cancel`"
)

log = structlog.get_logger()


@dataclasses.dataclass(frozen=True, kw_only=True)
class RequestDependencies(resnapshot.ResnapshotDependencies):
    """The parts and callbacks of the engine that the requests use. `run_lock` returns the lock that merge runs hold. `is_captured` returns
    whether conf/ captures a table.
    """

    run_lock: Callable[[], Lock]
    is_captured: Callable[[str, str], bool] = lambda _database, _table: True


def fulfil(wanted: Sequence[ResumeRequest], dependencies: RequestDependencies) -> None:
    """Executes the requests about snapshots. Ignores requests to resume tables, which the caller executes."""
    for each in wanted:
        match each.kind:
            case ResumeKind.RE_SNAPSHOT:
                _resnapshot(each, dependencies)
            case ResumeKind.CANCEL if not _canceled(each, dependencies):
                # Keeps the request, because a run may be publishing the snapshot. The next tick tries again to cancel it.
                continue
            case ResumeKind.RESUME:
                continue
        log.info("snapshot_requested", table=each.name, kind=each.kind)
        each.done()


def _resnapshot(wanted: ResumeRequest, dependencies: RequestDependencies) -> None:
    """Re-snapshots a stopped table from the cursor on. If the table was dropped, only ends its stop. If the table's schema is unknown, or
    conf/ no longer captures the table, writes the reason into the snapshot record, which the operator's command has created.
    """
    cursor, stop = dependencies.meta.ledger.cursor, dependencies.meta.ledger.stopped(wanted.database, wanted.table)
    if cursor is None or stop is None:
        return
    schema = dependencies.schema(stop, cursor)
    if schema is None and resnapshot.end_dropped(stop, cursor, dependencies):
        return
    if schema is not None and not dependencies.is_captured(wanted.database, wanted.table):
        dependencies.records.update(wanted.name, lambda record: record.failed(NOT_CAPTURED))
    elif schema is None:
        dependencies.records.update(wanted.name, lambda record: record.failed(UNKNOWN))
    else:
        resnapshot.resnapshot(stop, schema, cursor, dependencies)


def _canceled(wanted: ResumeRequest, dependencies: RequestDependencies) -> bool:
    """Cancels a snapshot and removes its files. Returns False if a run holds the run lock, because the run may be reading the files."""
    lock = dependencies.run_lock()
    if not lock.try_acquire():
        return False
    try:
        _cancel(wanted, dependencies)
    finally:
        lock.release()
    return True


def end_dropped(
    dropped: Sequence[SnapshotRecord], records: SnapshotRecords, lock: Lock, stop: Callable[[SnapshotRecord], object]
) -> None:
    """Cancels the open snapshots of tables that were dropped, and removes their files. Does nothing if a run holds the run lock `lock`; a
    later tick tries again.

    First calls `stop` for each snapshot, which stops the table if the policy is `drop_table: apply`. With this policy, the deletion of the
    table's rows is among the buffered changes, which are removed with the snapshot. A resume of the stopped table reads the deletion again.
    """
    if not lock.try_acquire():
        return
    try:
        for each in dropped:
            stop(dataclasses.replace(each, heals=()))
            records.update(each.name, _canceled_for_good)
            records.sweep(each.name)
            log.warning("snapshot_ended_because_table_was_dropped", table=each.name)
    finally:
        lock.release()


def _canceled_for_good(record: SnapshotRecord) -> SnapshotRecord:
    """Returns the record of a dropped table's snapshot as canceled, without `heals`. A resume only deletes the table's rows, so no row
    remains that the publication would have corrected. Returns the record of an ended snapshot unchanged.
    """
    return dataclasses.replace(record.canceled(), heals=()) if record.is_open else record


def _cancel(wanted: ResumeRequest, dependencies: RequestDependencies) -> None:
    """Stops the table in the ledger, and then cancels its snapshot. Does nothing if the table has no open snapshot. In the other order, a
    crash between the two writes would leave a table that is not stopped and whose changes are no longer buffered, so its next merge would
    lack the buffered changes.

    The new stop may replace a stop that the table already has (`canceled_stop`). So the snapshot's record first gets the state of that stop
    in `heals`, if only the publication would have removed its cause.
    """
    record = dependencies.records.get(wanted.name)
    if record is None or not record.is_open:
        return
    ledger = dependencies.meta.ledger
    there, position = ledger.stopped(wanted.database, wanted.table), record.since or ledger.cursor
    if there is not None:
        heals = resnapshot.unhealed(there.state, has_rows=dependencies.has_rows(wanted.name))
        record = dependencies.records.update(wanted.name, lambda now: now.healing(*heals))
    if position is not None:
        dependencies.meta.update(canceled_stop(record, position))
    try:
        dependencies.records.update(wanted.name, lambda now: now.canceled())
        dependencies.records.sweep(wanted.name)
    except ActRefusedError as error:  # Nothing remains to be canceled, because the snapshot was published just before.
        log.warning("snapshot_not_canceled", table=wanted.name, reason=str(error))


def canceled_stop(record: SnapshotRecord, position: Position) -> Callable[[Ledger], Ledger]:
    """Returns a function that stops a table in a ledger at `position`, because the table's snapshot `record` is canceled.

    If the table stopped at a later position during the snapshot, the new stop replaces that stop. The changes between the two positions
    were buffered, and the cancellation removes them, so a resume must read them again. The stream then reaches the cause of the later stop
    again, or the record has the cause in `heals`. The same applies to a stop at `position` if the record has another cause in `heals`, for
    example changed settings: a resume of this stop would not say that the other cause remains. Any other stop at `position` or before
    stays.
    """
    why = f"the snapshot of the table was canceled, and its changes since {position} were buffered"
    left = dict.fromkeys(text for state, text in resnapshot.UNHEALED.items() if state in record.heals)
    ways = "`sluice schema resume` continues the table from that position, and `sluice snapshot start` re-snapshots it"
    if left:
        ways = ". ".join(("re-snapshot the table with `sluice snapshot start`", *left))
    stop = StoppedTable(
        database=record.database,
        table=record.table,
        state=TableState.SNAPSHOT_CANCELED,
        reason=f"{why}: {ways}",
        position=position,
    )

    def stopped(ledger: Ledger) -> Ledger:
        there = ledger.stopped(record.database, record.table)
        if there is not None:
            at, since = there.position.order_key, position.order_key
            if at < since or (at == since and {*record.heals} <= {there.state}):
                return ledger
        before = ledger if there is None else ledger.resume_table(record.database, record.table)
        return before.stop_table(stop)

    return stopped
