"""How far the lake is, against a place in the source: the ledger's cursor. What compares waits here."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from cdc_engine.destination_files import read_ledger
from cdc_engine.errors import SluiceError
from cdc_engine.gtid import is_mariadb, parse_executed
from cdc_engine.position import OFFSET_MAX, Position, file_number, order_key
from equality.source_side import Place

POLL_SECONDS = 0.2
MARIADB = "mariadb-"  # a server's identity, where it has no uuid


class Merged(Protocol):
    """Where the merges of a destination are."""

    def wait(self, place: Place, seconds: float) -> bool:
        """Whether all that was committed up to a place is in the lake, at the latest after `seconds`."""

    def order_key(self, place: Place) -> int | None:
        """The order key of a place, None where the lake's keys count by another server's files."""

    def told(self) -> str:
        """Where they are, for a sentence."""


class DestinationMerged:
    """By the ledger of a destination, which a running engine moves on. `directory`: the destination's."""

    def __init__(self, directory: Path, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._directory, self._sleep = directory, sleep

    def wait(self, place: Place, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not reached(self._cursor(), place):
            if time.monotonic() >= deadline:
                return False
            self._sleep(POLL_SECONDS)
        return True

    def order_key(self, place: Place) -> int | None:
        return order_key_of(self._cursor(), place)

    def told(self) -> str:
        cursor = self._cursor()
        return f"all up to {cursor}" if cursor else "nothing"

    def _cursor(self) -> Position | None:
        return read_ledger(self._directory).cursor


class NothingToWaitFor:
    """Where all is known to be merged: a table that nobody writes to."""

    def wait(self, place: Place, seconds: float) -> bool:  # noqa: ARG002
        return True

    def order_key(self, place: Place) -> int | None:  # noqa: ARG002
        return None

    def told(self) -> str:
        return "everything"


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
