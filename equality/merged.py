"""Reports up to which position a destination's changes are merged into the lake. This position is the cursor in the destination's ledger.
Also waits until the lake reaches a position of the source.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from sluice.cdc_engine.destination_files import lease_holder, read_ledger
from sluice.cdc_engine.errors import MetaError, SluiceError
from sluice.cdc_engine.gtid import is_mariadb, parse_executed
from sluice.cdc_engine.position import OFFSET_MAX, Position, file_number, order_key
from sluice.cdc_engine.states import ENDED, EngineState, engine_state
from sluice.cdc_engine.status_file import engine_status
from sluice.equality.source_side import BinlogEnd

POLL_SECONDS = 0.2
SAY_SECONDS = 5.0
# A wait ends early if `Merged.halted` has returned a reason for this time without a break. A shorter halt is normal: the engine may be
# restarting, or another host may be taking over.
GONE_SECONDS_MAX = 5.0
MARIADB = "mariadb-"  # The prefix of a MariaDB server's identity, because MariaDB has no server UUID.


class Merged(Protocol):
    """Reports up to which position a destination's changes are merged into the lake."""

    def wait(self, end: BinlogEnd, seconds: float) -> bool:
        """Waits up to `seconds`. Returns whether the lake has all transactions up to the position `end`."""

    def order_key(self, end: BinlogEnd) -> int | None:
        """Returns the order key of the position `end`. Returns None if nothing is merged yet, or if the lake's order keys belong to the
        binlog files of another server.
        """

    def progress(self) -> str:
        """Returns up to which position changes are merged into the lake, as a part of a sentence."""

    def halted(self) -> str:
        """Returns why nothing is merged now, or "" if nothing prevents merges. If `halted` returns a reason for GONE_SECONDS_MAX without a
        break, `wait` returns False before its `seconds` are over.
        """


class DestinationMerged:
    """Implements `Merged` with the cursor in the ledger of a destination. A running engine moves the cursor. `directory` is the
    destination's directory. `say` is called with a sentence about the wait, at once and then every SAY_SECONDS.
    """

    def __init__(
        self,
        directory: Path,
        *,
        sleep: Callable[[float], None] = time.sleep,
        say: Callable[[str], None] | None = None,
        gone_seconds_max: float = GONE_SECONDS_MAX,
    ) -> None:
        self._directory, self._sleep, self._say, self._gone_seconds_max = directory, sleep, say, gone_seconds_max

    def wait(self, end: BinlogEnd, seconds: float) -> bool:
        began = time.monotonic()
        said_at, gone_since = -SAY_SECONDS, None
        while not reached(self._cursor(), end):
            now = time.monotonic()
            why = self.halted()
            gone_since = (gone_since or now) if why else None
            if now - began >= seconds or (gone_since is not None and now - gone_since >= self._gone_seconds_max):
                return False
            if self._say is not None and now - said_at >= SAY_SECONDS:
                said_at = now
                self._say(
                    f"waiting for the lake to reach {end}: the lake has {self.progress()}{f'; {why}' if why else ''}"
                )
            self._sleep(POLL_SECONDS)
        return True

    def halted(self) -> str:
        """Returns why nothing is merged: no process holds the lease of the destination, or the destination's status says that its engine
        has stopped. Returns "" in all other cases.
        """
        try:
            holder = lease_holder(self._directory)
        except MetaError:  # The store of the leases does not answer. Reading the ledger reports the error.
            return ""
        if holder is None or not holder.held:
            return "no engine runs for this destination: start the engine with `sluice up`"
        return _stopped_state(self._directory)

    def order_key(self, end: BinlogEnd) -> int | None:
        return order_key_of(self._cursor(), end)

    def progress(self) -> str:
        cursor = self._cursor()
        return f"all changes up to {cursor}" if cursor else "nothing"

    def _cursor(self) -> Position | None:
        return read_ledger(self._directory).cursor


def _stopped_state(directory: Path) -> str:
    """Returns a text that says in which state and why the engine has stopped, according to the engine's status. Returns "" if the engine
    has not stopped, or if there is no status.
    """
    record = engine_status(directory)
    if not record.get("state"):
        return ""
    state, reason = engine_state(record["state"]), record.get("reason")
    why = f": {reason}" if reason else ""
    return f"the engine stopped in the state {state}{why}" if state in {*ENDED, EngineState.STOPPED} else ""


def reached(cursor: Position | None, end: BinlogEnd) -> bool:
    """Returns whether a cursor includes everything up to the position `end`. If cursor and `end` belong to the same server, their files and
    offsets are compared, otherwise their GTID sets. Returns False if the cursor is None, or if GTID sets are needed and one of the two is
    empty.

    On MariaDB, GTID sets are also compared if cursor and `end` belong to the same server and the cursor has not reached the offset of
    `end`. The cursor may never reach this offset, because MariaDB writes events that are not transactions (BINLOG_CHECKPOINT, GTID_LIST)
    after the last transaction. On MySQL, equal GTID sets would prove nothing, because a transaction may have no GTID.
    """
    if cursor is None:
        return False
    same = cursor.server_uuid == end.server_uuid and bool(cursor.file)
    if same and (file_number(cursor.file), cursor.offset) >= (file_number(end.file), end.offset):
        return True
    if (same and not end.server_uuid.startswith(MARIADB)) or not cursor.gtid_set or not end.gtid_set:
        return False
    try:
        mariadb = is_mariadb(end.gtid_set)
        there = parse_executed(cursor.gtid_set, mariadb=mariadb)
        return bool(there.contains(parse_executed(end.gtid_set, mariadb=mariadb)))  # type: ignore[arg-type]
    except (ValueError, SluiceError):
        return False


def order_key_of(cursor: Position | None, end: BinlogEnd) -> int | None:
    """Returns the order key of the position `end` in the cursor's epoch. Returns None if there is no cursor, or if the cursor belongs to
    another server's binlog.
    """
    if cursor is None or cursor.server_uuid != end.server_uuid:
        return None
    return order_key(cursor.epoch, file_number(end.file), min(end.offset, OFFSET_MAX))
