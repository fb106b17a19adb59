"""How far the lake is, against a place in the source: the ledger's cursor. What compares waits here."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from cdc_engine.destination_files import lease_holder, read_ledger
from cdc_engine.errors import MetaError, SluiceError
from cdc_engine.gtid import is_mariadb, parse_executed
from cdc_engine.position import OFFSET_MAX, Position, file_number, order_key
from cdc_engine.states import ENDED, EngineState, engine_state
from equality.source_side import Place

POLL_SECONDS = 0.2
SAY_SECONDS = 5.0
GONE_SECONDS_MAX = 5.0  # an engine that is restarted, or taken over by another host, holds no lease for a moment
STATUS_FILE = "status.json"
MARIADB = "mariadb-"  # a server's identity, where it has no uuid


class Merged(Protocol):
    """Where the merges of a destination are."""

    def wait(self, place: Place, seconds: float) -> bool:
        """Whether all that was committed up to a place is in the lake, at the latest after `seconds`."""

    def order_key(self, place: Place) -> int | None:
        """The order key of a place, None where the lake's keys count by another server's files."""

    def told(self) -> str:
        """Where they are, for a sentence."""

    def halted(self) -> str:
        """Why nothing is merged now, or empty. The last `wait` then ended before its time."""


class DestinationMerged:
    """By the ledger of a destination, which a running engine moves on. `directory`: the destination's.

    `say` gets a sentence about what is waited for, at once and every SAY_SECONDS.
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

    def wait(self, place: Place, seconds: float) -> bool:
        began = time.monotonic()
        said_at, gone_since = -SAY_SECONDS, None
        while not reached(self._cursor(), place):
            now = time.monotonic()
            why = self.halted()
            gone_since = (gone_since or now) if why else None
            if now - began >= seconds or (gone_since is not None and now - gone_since >= self._gone_seconds_max):
                return False
            if self._say is not None and now - said_at >= SAY_SECONDS:
                said_at = now
                self._say(f"waiting for the lake to reach {place}: it has {self.told()}{f'; {why}' if why else ''}")
            self._sleep(POLL_SECONDS)
        return True

    def halted(self) -> str:
        """By the lease, which the process that reads the destination holds, and by the state that its engine wrote last."""
        try:
            holder = lease_holder(self._directory)
        except MetaError:  # whoever keeps the lease does not answer: the ledger says so by itself
            return ""
        if holder is None or not holder.held:
            return "no engine runs for this destination: `sluice up` starts it"
        return _stopped_word(self._directory / STATUS_FILE)

    def order_key(self, place: Place) -> int | None:
        return order_key_of(self._cursor(), place)

    def told(self) -> str:
        cursor = self._cursor()
        return f"all up to {cursor}" if cursor else "nothing"

    def _cursor(self) -> Position | None:
        return read_ledger(self._directory).cursor


def _stopped_word(path: Path) -> str:
    """The state of an engine that holds the lease and reads nothing; empty while it reads, and where it has written no status."""
    try:
        record = json.loads(path.read_text())
        state, reason = engine_state(record["state"]), str(record.get("reason") or "")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ""
    told = f": {reason}" if reason else ""
    return f"the engine stopped in the state {state}{told}" if state in {*ENDED, EngineState.STOPPED} else ""


class NothingToWaitFor:
    """Where all is known to be merged: a table that nobody writes to."""

    def wait(self, place: Place, seconds: float) -> bool:  # noqa: ARG002
        return True

    def order_key(self, place: Place) -> int | None:  # noqa: ARG002
        return None

    def told(self) -> str:
        return "everything"

    def halted(self) -> str:
        return ""


def reached(cursor: Position | None, place: Place) -> bool:
    """Whether a cursor has all up to a place: by file and offset of one server, by GTIDs of two.

    Of one MariaDB by its GTIDs as well: it writes events after the last transaction that are none (BINLOG_CHECKPOINT, GTID_LIST), which
    no cursor moves over, and each of its transactions has a GTID. A MySQL server may have some without.
    """
    if cursor is None:
        return False
    same = cursor.server_uuid == place.server_uuid and bool(cursor.file)
    if same and (file_number(cursor.file), cursor.offset) >= (file_number(place.file), place.offset):
        return True
    if (same and not place.server_uuid.startswith(MARIADB)) or not cursor.gtid_set or not place.gtid_set:
        return False
    try:
        mariadb = is_mariadb(place.gtid_set)
        there = parse_executed(cursor.gtid_set, mariadb=mariadb)
        return bool(there.contains(parse_executed(place.gtid_set, mariadb=mariadb)))  # type: ignore[arg-type]
    except (ValueError, SluiceError):
        return False


def order_key_of(cursor: Position | None, place: Place) -> int | None:
    """As `Merged.order_key`, by the cursor."""
    if cursor is None or cursor.server_uuid != place.server_uuid:
        return None
    return order_key(cursor.epoch, file_number(place.file), min(place.offset, OFFSET_MAX))
