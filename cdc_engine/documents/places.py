"""Opens the record store that a `MetaPlace` names, or none if the records are files. Used by `meta`, `ha` and `destination_files`."""

from __future__ import annotations

import threading
from pathlib import Path

from cdc_engine.contracts import DestinationDir, MetaPlace
from cdc_engine.documents.contract import Documents
from cdc_engine.documents.memory import MemoryDocuments
from cdc_engine.errors import ConfigurationError

Place = Path | MetaPlace  # a directory knows its place (`contracts.DestinationDir`) or contains the ledger

_in_memory: dict[str, MemoryDocuments] = {}
_lock = threading.Lock()


def as_place(place: Place) -> MetaPlace:
    """Returns `place` itself, the `MetaPlace` of a `DestinationDir`, or one for a plain directory."""
    if isinstance(place, MetaPlace):
        return place
    known = place.place if isinstance(place, DestinationDir) else None
    return known or MetaPlace(destination=place.name, directory=place)


def documents_of(place: MetaPlace) -> Documents | None:
    """Opens the record store; None if the records are files in the directory. Raises ConfigurationError, MetaError."""
    if place.kind == "memory":
        with _lock:
            return _in_memory.setdefault(str(place.directory), MemoryDocuments())
    if place.kind == "sql":
        from cdc_engine.documents.sql import SqlDocuments  # noqa: PLC0415  most destinations do without SQLAlchemy

        return SqlDocuments(place.url, place.destination)
    if place.kind == "zookeeper":
        from cdc_engine.documents.zookeeper import ZooKeeperDocuments  # noqa: PLC0415  and without kazoo

        return ZooKeeperDocuments(place.hosts, place.destination, place.session_seconds)
    return None


def shared_documents(place: MetaPlace) -> Documents:
    """Opens the record store of a place that `is_shared`. Raises ConfigurationError, MetaError."""
    documents = documents_of(place)
    if documents is None:
        raise ConfigurationError(
            f"meta kind {place.kind} of {place.destination} is of one machine: use zookeeper or sql"
        )
    return documents
