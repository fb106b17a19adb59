"""Opens the record store that a `LedgerLocation` names, or none if the records are files. Used by `meta`, `ha` and `destination_files`."""

from __future__ import annotations

import threading
from pathlib import Path

from cdc_engine.contracts import DestinationDir, LedgerLocation
from cdc_engine.errors import ConfigurationError
from cdc_engine.records.contract import RecordStore
from cdc_engine.records.memory import MemoryRecordStore

Location = Path | LedgerLocation  # a directory knows its place (`contracts.DestinationDir`) or contains the ledger

_in_memory: dict[str, MemoryRecordStore] = {}
_lock = threading.Lock()


def as_location(place: Location) -> LedgerLocation:
    """Returns `place` itself, the `LedgerLocation` of a `DestinationDir`, or one for a plain directory."""
    if isinstance(place, LedgerLocation):
        return place
    known = place.place if isinstance(place, DestinationDir) else None
    return known or LedgerLocation(destination=place.name, directory=place)


def record_store_of(place: LedgerLocation) -> RecordStore | None:
    """Opens the record store; None if the records are files in the directory. Raises ConfigurationError, MetaError."""
    if place.kind == "memory":
        with _lock:
            return _in_memory.setdefault(str(place.directory), MemoryRecordStore())
    if place.kind == "sql":
        from cdc_engine.records.sql import SqlRecordStore  # noqa: PLC0415  most destinations do without SQLAlchemy

        return SqlRecordStore(place.url, place.destination)
    if place.kind == "zookeeper":
        from cdc_engine.records.zookeeper import ZooKeeperRecordStore  # noqa: PLC0415  and without kazoo

        return ZooKeeperRecordStore(place.hosts, place.destination, place.session_seconds)
    return None


def shared_record_store(place: LedgerLocation) -> RecordStore:
    """Opens the record store of a place that `is_shared`. Raises ConfigurationError, MetaError."""
    documents = record_store_of(place)
    if documents is None:
        raise ConfigurationError(
            f"meta kind {place.kind} of {place.destination} works on one machine only: use zookeeper or sql"
        )
    return documents
