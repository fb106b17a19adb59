"""Waits until the lake has everything up to a position, for `sluice catch-up` and its Dagster job. By default, the position is the end of
the source's binlog at the beginning of the wait.

Reads only files and records of the destination: the engine's status, the ledger and the records of snapshots. `missing` returns what the
lake still lacks.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.cdc_engine.destination_files import lease_holder, read_ledger
from sluice.cdc_engine.errors import ActRefusedError
from sluice.cdc_engine.gtid import has_executed, parse_executed
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.snapshot.record import SnapshotRecord, SourceEnd, has_come_past
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.states import EngineState, SnapshotState, ended
from sluice.cdc_engine.status_file import engine_status

# Imported only for type checks: Dagster's definitions import this module, and the import of the parser takes a second.
if TYPE_CHECKING:
    from sluice.cdc_engine.parser.server_facts import ServerFacts

LOOK_SECONDS = 0.5
# The wait fails if the engine reads nothing for longer than this. It does not fail at once, because in some states each tick starts the
# engine again.
ENDED_SECONDS_MAX = 60.0
STATUS_SECONDS_MAX = 15.0  # A status that is older than this is ignored. An engine writes its status once per second.
# The wait fails if the engine writes no new status for longer than this. A starting engine writes no status while it compiles kernels; the
# compilation takes less than this time.
SILENT_SECONDS_MAX = 300.0
# If the lake lacks only changes of stopped tables, the wait succeeds after this time. It does not succeed at once, because the engine may
# start snapshots of the stopped tables by itself.
STOPPED_SECONDS_MIN = 30.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class CatchUpEnd:
    """The position that the lake must reach: the end of the source's binlog, the position that belongs to a requested time, or a GTID set
    (`end.file` is then empty). `server_uuid` is the uuid of the server that reported the position, or empty if the server has no uuid.
    """

    end: SourceEnd
    server_uuid: str = ""

    def __str__(self) -> str:
        return f"{self.end.file}:{self.end.offset}" if self.end.file else self.end.executed

    def is_reached(self, cursor: Position) -> bool:
        """Returns whether a cursor has reached this position. If the cursor and this position have GTID sets, compares the sets; otherwise
        compares files and offsets. Returns False without a comparison if the files belong to two different servers.
        """
        if self.end.executed and cursor.gtid_set:
            return has_executed(cursor.gtid_set, self.end.executed)
        same = "" in {cursor.server_uuid, self.server_uuid} or cursor.server_uuid == self.server_uuid
        return same and has_come_past(cursor, self.end)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Progress:
    """How far the engine and the lake of a destination have come.

    - `state`, `reason`: from the engine's status, or empty if the engine has not written a status recently. An engine on another host
      writes no status on this host. Such an engine counts as RUNNING as long as it holds the lease.
    - `cursor`: the position up to which everything is acked.
    - `ticked`: whether the destination's sensor has had a tick since the wait began. The wait does not end before this tick, because the
      tick may start snapshots of stopped tables. Always True for an engine on another host.
    - `snapshots`: the open snapshots. `stopped`: the names of stopped tables.
    """

    state: str = ""
    reason: str = ""
    cursor: Position | None = None
    ticked: bool = True
    snapshots: tuple[SnapshotRecord, ...] = ()
    stopped: tuple[str, ...] = ()


def missing(progress: Progress, wanted: CatchUpEnd) -> str:
    """Returns what the lake still lacks, as a sentence, or "" if the lake has everything up to `wanted`. Pure."""
    if not progress.state:
        return "the engine has written no status yet, or has stopped writing it"
    # While the engine does not run, the lake counts as incomplete even if the cursor has reached `wanted`, because an engine that starts
    # may still request initial snapshots.
    if progress.state != EngineState.RUNNING:
        return (
            f"the engine is {progress.state}: {progress.reason}"
            if progress.reason
            else f"the engine is {progress.state}"
        )
    if progress.cursor is None or not wanted.is_reached(progress.cursor):
        acked = f"acked up to {progress.cursor}" if progress.cursor else "nothing is acked yet"
        return f"{acked}; the wait ends at {wanted}"
    if not progress.ticked:
        return "the engine has had no tick since the wait began"
    open_now = [
        f"{each.name} {each.state} ({each.rows} of about {each.rows_expected} rows)" for each in progress.snapshots
    ]
    return f"snapshots are reading rows: {', '.join(open_now)}" if open_now else ""


def blocked(progress: Progress, destination: str) -> str:
    """Returns why an open snapshot does not continue without an operator, with the command that continues it. Returns "" if no snapshot
    waits for an operator. Pure.
    """
    for each in progress.snapshots:
        if each.state == SnapshotState.FAILED:
            return f"the snapshot of {each.name} failed: {each.reason} (`sluice snapshot resume {destination} {shlex.quote(each.name)}`)"
        if each.paused:
            return f"the snapshot of {each.name} is paused (`sluice snapshot resume {destination} {shlex.quote(each.name)}`)"
    return ""


def reached_sentence(wanted: CatchUpEnd, stopped: Sequence[str]) -> str:
    """Returns a sentence that reports the successful end of a wait. `stopped` are the names of stopped tables, which get no changes."""
    done = f"everything up to {wanted} is in the lake"
    return (
        (
            f"{done}, except the changes of the stopped tables {', '.join(stopped)} after their stops; `sluice status` "
            "shows how to resume each table"
        )
        if stopped
        else done
    )


def end_of(facts: ServerFacts) -> CatchUpEnd:
    """Returns the end of the source's binlog from the facts that the source reported."""
    end = SourceEnd(file=facts.file, offset=facts.offset, executed=facts.executed if facts.gtid_enabled else "")
    return CatchUpEnd(end=end, server_uuid=facts.server_uuid)


def gtid_end(facts: ServerFacts, gtids: str) -> CatchUpEnd | None:
    """Returns the position that a cursor reaches when it has all transactions of a GTID set. Returns None if `gtids` is empty, or is not a
    GTID set in the form of the source (MySQL or MariaDB). Raises ActRefusedError if the source has no GTIDs.
    """
    try:
        found = str(parse_executed(gtids, mariadb=facts.mariadb))
    except ValueError:
        return None
    if not found:
        return None
    if not facts.gtid_enabled:
        raise ActRefusedError(
            f"`sluice catch-up` cannot wait for {gtids}, because the source has no GTIDs; give a time instead"
        )
    return CatchUpEnd(end=SourceEnd(file="", offset=0, executed=found), server_uuid=facts.server_uuid)


def read_progress(directory: Path, since: float) -> Progress:
    """Reads the progress of a destination from its files and records. Ignores a status that was written before `since` (seconds since 1970)
    or more than STATUS_SECONDS_MAX ago, because it may be from an engine that has ended. Raises MetaError if a record cannot be read.
    """
    # Reads the status before the ledger, so that the ledger is as new as the status or newer.
    status = engine_status(directory)
    holder = lease_holder(directory)
    ledger = read_ledger(directory)
    written = int(status.get("updated_at_us") or 0) / 1e6
    fresh = written >= since and time.time() - written <= STATUS_SECONDS_MAX
    elsewhere = holder is not None and holder.held and holder.host != os.uname().nodename
    return Progress(
        state=EngineState.RUNNING if elsewhere else str(status.get("state") or "") if fresh else "",
        reason=str(status.get("reason") or "") if fresh else "",
        cursor=ledger.cursor,
        ticked=elsewhere or int(status.get("ticked_at_us") or 0) >= since * 1e6,
        snapshots=tuple(each for each in SnapshotRecords(directory).all() if each.is_open),
        stopped=tuple(sorted(each.name for each in ledger.stopped_tables)),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Waiting:
    """The callbacks and the time limit of `wait_until_caught_up`.

    - `look`: reads the progress of the destination. `pause`: waits between two calls of `look`.
    - `say`: reports what the lake lacks. Called whenever the report changes.
    - `seconds_max`: the wait fails after this many seconds. 0 means never.
    """

    destination: str
    look: Callable[[], Progress]
    say: Callable[[str], None]
    pause: Callable[[], None]
    seconds_max: float = 0.0


def wait_until_caught_up(waiting: Waiting, wanted: CatchUpEnd) -> Progress:
    """Waits until the lake has everything up to `wanted`, except changes of stopped tables. Returns the last progress, which names these
    tables.

    Raises ActRefusedError if the engine stays in a state in which it reads nothing, if it writes no status, if a snapshot cannot continue
    without an operator, or after `waiting.seconds_max` seconds.
    """
    begun, said = time.monotonic(), ""
    ended, stopped, silent = _Since(), _Since(), _Since()
    while True:
        progress, now = waiting.look(), time.monotonic()
        lacks = missing(progress, wanted)
        stopped_seconds = stopped.seconds(now, holds=not lacks and bool(progress.stopped))
        if not lacks and (not progress.stopped or stopped_seconds >= STOPPED_SECONDS_MIN):
            return progress
        lacks = lacks or f"the engine may re-snapshot the stopped tables {', '.join(progress.stopped)} by itself"
        if lacks != said:
            said = lacks
            waiting.say(lacks)
        if ended.seconds(now, holds=bool(progress.state) and has_ended(progress.state)) > ENDED_SECONDS_MAX:
            why = f": {progress.reason}" if progress.reason else "; `sluice status` shows what to do"
            raise ActRefusedError(f"{waiting.destination} is {progress.state}{why}")
        if silent.seconds(now, holds=not progress.state) > SILENT_SECONDS_MAX:
            raise ActRefusedError(
                f"the engine of {waiting.destination} has written no status for {SILENT_SECONDS_MAX:g} s; `sluice status` and the logs in "
                "data_dir say why"
            )
        if why := blocked(progress, waiting.destination):
            raise ActRefusedError(why)
        if waiting.seconds_max and now - begun > waiting.seconds_max:
            raise ActRefusedError(
                f"{waiting.destination} has not caught up within {waiting.seconds_max:g} s: {lacks}; `sluice "
                "status` shows what delays the destination"
            )
        waiting.pause()


class _Since:
    """Measures for how many seconds a condition has been true without interruption."""

    def __init__(self) -> None:
        self._at: float | None = None

    def seconds(self, now: float, *, holds: bool) -> float:
        self._at = (now if self._at is None else self._at) if holds else None
        return 0.0 if self._at is None else now - self._at


def has_ended(state: str) -> bool:
    """Returns whether an engine in this state reads nothing. Also returns True for a state that this version of Sluice does not know."""
    return state not in EngineState.__members__ or ended(state) or state == EngineState.STOPPED
