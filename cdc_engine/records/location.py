"""Opens the record store of a destination."""

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

# Where the records of a destination are: the location of its ledger, or a path. A `contracts.DestinationDir` is a path that can have the
# location of the ledger. If a path has no such location, the records are files in the folder with this path.
Location = Path | LedgerLocation

_in_memory: dict[str, MemoryRecordStore] = {}
_lock = threading.Lock()


def as_location(location: Location) -> LedgerLocation:
    """Converts a location to a `LedgerLocation`. For a `DestinationDir` that has the location of its ledger, returns that location. For any
    other path, the ledger consists of files in the folder with this path.
    """
    if isinstance(location, LedgerLocation):
        return location
    known = location.location if isinstance(location, DestinationDir) else None
    return known or LedgerLocation(destination=location.name, directory=location)


def record_store(location: Location) -> RecordStore:
    """Opens the record store of a destination. Raises ConfigurationError if a library is missing or the URL is invalid, and MetaError if
    the record store does not answer.
    """
    return _opened(as_location(location), os.getpid())


@functools.cache  # Cached, so that a process has one store per destination of conf/.
def _opened(location: LedgerLocation, pid: int) -> RecordStore:  # noqa: ARG001  connections belong to one process
    if location.kind == "memory":
        with _lock:
            return _in_memory.setdefault(str(location.directory), MemoryRecordStore())
    if location.kind == "sql":
        from sluice.cdc_engine.records.sql import SqlRecordStore  # noqa: PLC0415  most destinations do without SQLAlchemy

        return SqlRecordStore(location.url, location.destination, location.password)
    if location.kind == "zookeeper":
        require(Extra.ZOOKEEPER, ConfigurationError)
        from sluice.cdc_engine.records.zookeeper import ZooKeeperRecordStore  # noqa: PLC0415  and without kazoo

        return ZooKeeperRecordStore(location.zookeeper, location.destination, location.session_seconds)
    return FileRecordStore(location.directory)
