"""Resumes stopped tables at an operator's request, while the engine runs. The engine reads the stream again from the position where the
table stopped.

`acts` writes the request (`meta.resume_requests`). `engine_acts` checks for requests before each batch, and calls `take_up` while no batch
is in flight. `take_up` moves the cursor back to the earliest stop of the requested tables. The changes of the resumed tables are read again
with what an operator changed after the stop: an approval, a policy, a schema, a setting of the source. For the other tables, changes that
the lake already has are skipped by order key. If the cause of a stop still exists, the table stops again.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from sluice.cdc_engine.contracts import StoppedTable
from sluice.cdc_engine.errors import MetaError
from sluice.cdc_engine.meta.ledger import Ledger
from sluice.cdc_engine.meta.manager import MetaManager
from sluice.cdc_engine.meta.resume_requests import ResumeRequest
from sluice.cdc_engine.parser.connection import SourceConnection
from sluice.cdc_engine.parser.server_facts import ServerFacts, read_facts
from sluice.cdc_engine.parser.start_position import Lost, StartChoice, decide_start
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.records.location import record_store
from sluice.cdc_engine.source.server import Source
from sluice.cdc_engine.states import TableState
from sluice.cdc_engine.store.files.forget import forget_events

RESUMED_FILE = "resumed.json"

log = structlog.get_logger()


def facts_of(source: Source, *files: str) -> ServerFacts:
    """Returns the facts of a source, with the creation times of `files`, over a new connection. Raises SourceConnectionError."""
    connection = SourceConnection(source)
    try:
        return read_facts(connection, *files)
    finally:
        connection.close()


def take_up(
    wanted: Sequence[ResumeRequest],
    meta: MetaManager,
    query_facts: Callable[..., ServerFacts],
    read_again: Callable[[], None],
    folder: Path,
) -> None:
    """Moves the cursor back to the earliest stop from which the source can still be read, and restarts the stream there. A table whose
    changes since its stop can no longer be read gets the state RESUME_LOST. Call it only while no batch is in flight.

    `query_facts` returns the facts of the source, with the creation times of some binlog files. `read_again` starts the stream at the
    cursor. `folder` is the destination's folder. If the source does not answer, raises SourceConnectionError, changes nothing, and keeps
    the requests for a later call.
    """
    stops = [stop for each in wanted if (stop := meta.ledger.stopped(each.database, each.table)) is not None]
    if stops:
        facts = query_facts(*{stop.position.file for stop in stops})
        lost = {stop: why for stop in stops if (why := _why_lost(stop, meta.ledger, facts))}
        for stop, why in lost.items():
            meta.update(_restates(dataclasses.replace(stop, state=TableState.RESUME_LOST, reason=why)))
        positions = [stop.position for stop in stops if stop not in lost]
        if positions:
            _note_behind(folder, [stop for stop in stops if stop not in lost], meta.ledger)
            # Includes the cursor, which is before the stop if the batch in which the table stopped was rolled back.
            begin = min([*positions, *filter(None, [meta.ledger.cursor])], key=lambda position: position.order_key)
            resumed = {stop.name for stop in stops if stop not in lost}
            # Removes the stored events, because they lack rows of stopped tables. After a crash, no engine may continue from them.
            forget_events(folder)
            meta.update(lambda ledger: ledger.set_cursor(begin, resumed))
            read_again()
    for each in wanted:
        log.info("table_resumed", database=each.database, table=each.table)
        each.done()


def _note_behind(folder: Path, stops: Sequence[StoppedTable], ledger: Ledger) -> None:
    """Saves which tables are read again from their stops. Also saves the order key up to which all other tables are complete in the lake,
    so that the other tables do not get the same changes twice.
    """
    cursor = ledger.cursor.order_key if ledger.cursor else 0
    until, tables = _behind(folder)
    kept = dict.fromkeys(tables, cursor) if cursor < until else {}
    behind = {stop.name: stop.position.order_key for stop in stops}
    record_store(folder).put(RESUMED_FILE, json.dumps({"until": max(until, cursor), "tables": {**kept, **behind}}))


def _behind(folder: Path) -> tuple[int, dict[str, int]]:
    records = record_store(folder)
    text = records.get(RESUMED_FILE)
    if text is None:
        return 0, {}
    try:
        record = json.loads(text)
        return int(record["until"]), {str(name): int(key) for name, key in record["tables"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        where = records.where(RESUMED_FILE)
        raise MetaError(
            f"{where} cannot be read ({error}); remove this record, and re-snapshot the tables that were resumed"
        ) from error


def has_up_to(folder: Path, start: Position) -> Callable[[str], int]:
    """Returns a function that maps "database.table" to the order key up to which the lake has the table's changes. Staging skips changes up
    to this key. Such changes occur after a resume, because the stream is then read again, and the lake lacks only the changes of the
    resumed tables.

    The function is valid for a batch that starts at `start`. It returns 0, which skips nothing, if the resumed tables have caught up at
    `start`.
    """
    until, tables = _behind(folder)
    if start.order_key >= until:
        return lambda _table: 0
    return lambda table: tables.get(table, until)


def _why_lost(stop: StoppedTable, ledger: Ledger, facts: ServerFacts) -> str:
    """Returns why a table cannot continue from the position where it stopped, or an empty text if it can. The text includes the reason of
    the stop.
    """
    before = stop.reason if stop.state == TableState.RESUME_LOST else f"{stop.state}: {stop.reason}"
    if stop.position.epoch != ledger.epoch:
        why = (
            f"the table stopped in epoch {stop.position.epoch}, and the stream is now in epoch {ledger.epoch}, which began "
            "with another source, a reset or a new position"
        )
    else:
        start = decide_start(stop.position, StartChoice(), facts)
        if not isinstance(start, Lost) and start.position.epoch == ledger.epoch:
            return ""
        # A resume that needs a new epoch is refused, because the destination would lose its position: after a resume, the stream is read
        # again, and no new epoch may begin during this time (`Ledger.unfinished`).
        why = (
            str(start)
            if isinstance(start, Lost)
            else "the source's address now leads to another server or a reset binlog"
        )
    if stop.state == TableState.RESUME_LOST:
        return before
    lost = (
        f"the changes since {stop.position} can no longer be read ({why}); re-snapshot the table with `sluice snapshot "
        "start`"
    )
    return f"{lost}. The table first stopped for this reason: {before}"


def _restates(stop: StoppedTable) -> Callable[[Ledger], Ledger]:
    return lambda ledger: ledger.restate_stop(stop)
