"""What an operator does about the rows that tables already have: ask for them, hold, go on, give up. Called by the console.

Each act is kept in the snapshot's record, or is a wish that the running engine finds. The reading itself is done by runs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from cdc_engine.contracts import StoppedTable
from cdc_engine.destination_files import read_ledger
from cdc_engine.errors import ActRefusedError
from cdc_engine.meta.ledger import Ledger
from cdc_engine.meta.resume_requests import Wish, ask_begin, request
from cdc_engine.snapshot.record import SnapshotRecord, wanted
from cdc_engine.snapshot.records import SnapshotRecords
from cdc_engine.states import SnapshotState
from cdc_engine.table_meta.history.tables_file import read_tables


def captured(tables_file: Path) -> tuple[str, ...]:
    """The "database.table" that the engine captures, by name. Raises MetaError."""
    return tuple(sorted(table.name for table in read_tables(tables_file)))


def start_where_lost(directory: Path) -> None:
    """The position of the destination is lost: the engine begins where the source is, with the rows of all its tables."""
    ask_begin(directory)


def start(directory: Path, names: Sequence[str], where: str = "") -> list[SnapshotRecord]:
    """Asks for the rows of tables; one that has stopped goes on from where the stream is then, one that failed is read anew.

    First the records: from then on changes are held. Only then is a table that stopped taken up again. Asking twice is asking once.
    Raises ActRefusedError where one is under way with another condition, MetaError.
    """
    ledger, records = read_ledger(directory), SnapshotRecords(directory)
    if ledger.cursor is None:
        raise ActRefusedError(f"{directory.name} has not begun yet: `sluice up` starts it, then ask again")
    asked = []
    for name in names:
        stop = _stop_of(ledger, name)
        asked.append(_wanted(records, name, where, ledger, stop))
        if stop is not None:
            request(directory, stop.database, stop.table, Wish.ANEW)
    return asked


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
            f"a snapshot of {name} is under way for {there.where or 'all rows'}; `sluice snapshot cancel` ends it"
        )
    if there.state == SnapshotState.FAILED:
        return records.update(name, lambda now: now.retried())
    if stop is not None and there.state != SnapshotState.WANTED:
        return records.update(name, lambda now: now.again("the table had stopped"))
    return there


def pause(directory: Path, name: str) -> SnapshotRecord:
    """No further chunk is read; changes are held on. Raises ActRefusedError where nothing is under way."""
    return SnapshotRecords(directory).update(name, lambda now: _open(now).with_pause(paused=True))


def go_on(directory: Path, name: str) -> SnapshotRecord:
    """A paused snapshot goes on after its last chunk, a failed one is read anew; a table that stopped goes on. Raises ActRefusedError."""
    record = SnapshotRecords(directory).update(name, lambda now: _open(now).retried())
    if _stop_of(read_ledger(directory), name) is not None:
        request(directory, record.database, record.table, Wish.ANEW)
    return record


def cancel(directory: Path, name: str) -> SnapshotRecord:
    """Asks the engine to end a snapshot: the table stands where it stood. Raises ActRefusedError, MetaError."""
    record = SnapshotRecords(directory).get(name)
    if record is None:
        raise ActRefusedError(f"there is no snapshot of {name}")
    _open(record)
    request(directory, record.database, record.table, Wish.CANCEL)
    return record


def _open(record: SnapshotRecord) -> SnapshotRecord:
    if not record.is_open:
        raise ActRefusedError(f"the snapshot of {record.name} is {record.state}: nothing is under way")
    return record


def _stop_of(ledger: Ledger, name: str) -> StoppedTable | None:
    return next((stop for stop in ledger.stopped_tables if f"{stop.database}.{stop.table}" == name), None)
