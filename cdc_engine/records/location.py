"""Opens the record store of a destination at its `LedgerLocation`. Used by all packages that have records."""

from __future__ import annotations

import functools
import os
import threading
from pathlib import Path

from sluice.cdc_engine.contracts import DestinationDir, LedgerLocation
from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.records.contract import RecordStore
from sluice.cdc_engine.records.files import FileRecordStore
from sluice.cdc_engine.records.memory import MemoryRecordStore
from sluice.extras import Extra, require

# A directory knows its location (`contracts.DestinationDir`) or contains the ledger itself.
Location = Path | LedgerLocation

_in_memory: dict[str, MemoryRecordStore] = {}
_lock = threading.Lock()


def as_location(place: Location) -> LedgerLocation:
    """Returns the `LedgerLocation` of a place: itself, that of a `DestinationDir`, or one for a plain directory."""
    if isinstance(place, LedgerLocation):
        return place
    known = place.place if isinstance(place, DestinationDir) else None
    return known or LedgerLocation(destination=place.name, directory=place)


def record_store(place: Location) -> RecordStore:
    """Opens the record store of a destination. Raises ConfigurationError, MetaError."""
    return _opened(as_location(place), os.getpid())


@functools.cache  # There is one per destination of conf/.
def _opened(place: LedgerLocation, pid: int) -> RecordStore:  # noqa: ARG001  connections belong to one process
    if place.kind == "memory":
        with _lock:
            return _in_memory.setdefault(str(place.directory), MemoryRecordStore())
    if place.kind == "sql":
        from sluice.cdc_engine.records.sql import SqlRecordStore  # noqa: PLC0415  most destinations do without SQLAlchemy

        return SqlRecordStore(place.url, place.destination, place.password)
    if place.kind == "zookeeper":
        require(Extra.ZOOKEEPER, ConfigurationError)
        from sluice.cdc_engine.records.zookeeper import ZooKeeperRecordStore  # noqa: PLC0415  and without kazoo

        return ZooKeeperRecordStore(place.zookeeper, place.destination, place.session_seconds)
    return FileRecordStore(place.directory)
