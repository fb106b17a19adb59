"""Starts, pauses, continues and cancels snapshots of tables, when an operator requests it.

To start or pause a snapshot, the functions write the record of the snapshot. To cancel a snapshot, or to re-snapshot a stopped table, the
functions store a request, which the engine executes and removes. Runs read the rows of the tables.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from sluice.cdc_engine.contracts import StoppedTable
from sluice.cdc_engine.destination_files import read_ledger
from sluice.cdc_engine.errors import ActRefusedError
from sluice.cdc_engine.meta.ledger import Ledger
from sluice.cdc_engine.meta.resume_requests import ResumeKind, request, request_new_start, requests
from sluice.cdc_engine.snapshot.record import SnapshotRecord, wanted
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.states import SnapshotState
from sluice.cdc_engine.table_meta.table_list.reading import read_tables


def captured(directory: Path) -> tuple[str, ...]:
    """Returns the captured tables as "database.table", sorted. Raises MetaError if the list cannot be read."""
    return tuple(sorted(table.name for table in read_tables(directory)))


def chosen(directory: Path, tables: Sequence[str]) -> list[str]:
    """Returns the tables that the operator named, or all captured tables if the operator named none. Accepts a stopped table that no longer
    exists on the source, so that its stop can be ended. Raises ActRefusedError if another named table is not captured, or if the engine has
    not listed the captured tables yet. Raises MetaError if the list of tables cannot be read.
    """
    known = captured(directory)
    unknown = sorted(set(tables) - set(known) - {stop.name for stop in read_ledger(directory).stopped_tables})
    if unknown:
        raise ActRefusedError(
            f"{directory.name} does not capture {', '.join(unknown)}; it captures {', '.join(known) or 'nothing yet'}"
        )
    if not known:
        raise ActRefusedError(
            f"{directory.name} does not know its tables yet: start the engine with `sluice up`, then try again"
        )
    return list(tables or known)


def start_where_lost(directory: Path) -> None:
    """Requests that a destination whose position is lost starts at the source's current position and re-snapshots all tables."""
    request_new_start(directory, read_ledger(directory).epoch)


def start(directory: Path, names: Sequence[str], where: str = "") -> list[SnapshotRecord]:
    """Requests snapshots of tables. Also ends the stop of a stopped table, starts a failed snapshot again, and continues a paused snapshot.
    A second call changes nothing while the snapshots are in progress. `where` is an SQL condition for the rows to read; an empty text means
    all rows.

    For a stopped table, writes the snapshot record before it requests that the engine re-snapshots the table. The engine buffers the
    changes of a table whose snapshot record is open, so no change is lost. Raises ActRefusedError if the destination has no position yet,
    or if a snapshot of a table is in progress with another condition or is being canceled. Raises MetaError if a record cannot be written.
    """
    ledger, records = read_ledger(directory), SnapshotRecords(directory)
    if ledger.cursor is None:
        raise ActRefusedError(
            f"{directory.name} has no position yet: start the engine with `sluice up`, then try again"
        )
    requested = []
    canceled = {each.name for each in requests(directory) if each.kind is ResumeKind.CANCEL}
    if ends := sorted(canceled & {each.name for each in records.all() if each.is_open and each.name in names}):
        raise ActRefusedError(
            f"the engine ends the snapshot of {', '.join(ends)}, which was canceled: wait until `sluice snapshot status` shows CANCELED, "
            "then start the snapshot again"
        )
    for name in names:
        stop = _stop_of(ledger, name)
        requested.append(_wanted(records, name, where, ledger, stop))
        if stop is not None:
            request(directory, stop.database, stop.table, ResumeKind.RE_SNAPSHOT)
    return requested


def _wanted(
    records: SnapshotRecords, name: str, where: str, ledger: Ledger, stop: StoppedTable | None
) -> SnapshotRecord:
    there = records.get(name)
    if there is None or not there.is_open:
        record = wanted(name, stop.position if stop else ledger.cursor, time.time(), where)
        records.begin(record)
        return record
    if there.where != where:
        raise ActRefusedError(
            f"a snapshot of {name} is in progress ({there.where or 'all rows'}); end that snapshot with "
            "`sluice snapshot cancel` first"
        )
    if there.state == SnapshotState.FAILED or there.paused:
        there = records.update(name, lambda now: now.retried())
    if stop is not None and there.state != SnapshotState.WANTED:
        return records.update(name, lambda now: now.again("the table had stopped"))
    return there


def pause(directory: Path, name: str) -> SnapshotRecord:
    """Pauses the snapshot of a table. No further chunk is read, but changes of the table are still buffered. Raises ActRefusedError if the
    table has no open snapshot.
    """
    return SnapshotRecords(directory).update(name, lambda now: _open(now).with_pause(paused=True))


def go_on(directory: Path, name: str) -> SnapshotRecord:
    """Continues a paused snapshot with the first chunk that is not complete, or starts a failed snapshot again. If the table has stopped,
    also requests that the engine re-snapshots the table. Raises ActRefusedError if the table has no open snapshot, and MetaError if a
    record cannot be written.
    """
    record = SnapshotRecords(directory).update(name, lambda now: _open(now).retried())
    if _stop_of(read_ledger(directory), name) is not None:
        request(directory, record.database, record.table, ResumeKind.RE_SNAPSHOT)
    return record


def cancel(directory: Path, name: str) -> SnapshotRecord:
    """Requests that the engine cancels the snapshot of a table and stops the table. The table stops at the position at which the snapshot
    began to buffer changes, so a resume loses no change. Raises ActRefusedError if the table has no open snapshot, and MetaError if the
    request cannot be stored.
    """
    record = SnapshotRecords(directory).get(name)
    if record is None:
        raise ActRefusedError(f"{name} has no snapshot; `sluice snapshot status` lists all snapshots")
    _open(record)
    request(directory, record.database, record.table, ResumeKind.CANCEL)
    return record


def _open(record: SnapshotRecord) -> SnapshotRecord:
    if not record.is_open:
        raise ActRefusedError(
            f"no snapshot of {record.name} is in progress: the last one is {record.state}; `sluice snapshot start` requests another one"
        )
    return record


def _stop_of(ledger: Ledger, name: str) -> StoppedTable | None:
    return next((stop for stop in ledger.stopped_tables if f"{stop.database}.{stop.table}" == name), None)
