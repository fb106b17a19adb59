"""Reads the id of the installation, and creates it if it does not exist. An installation is a data directory, or a shared ledger, with all
its destinations.

Engines identify themselves by this id as replicas of the source. Hosts that share a ledger have the same id, and two installations have
different ids. Runs store the id in each Delta table that several destinations write. A run of another installation refuses the table,
because runs of two installations do not see each other's locks.
"""

from __future__ import annotations

import threading
import time
import uuid

from sluice.cdc_engine.errors import MetaError
from sluice.cdc_engine.ha.leases import open_table_lock, tables_location
from sluice.cdc_engine.records.contract import RecordStore
from sluice.cdc_engine.records.location import Location, record_store

IDENTITY = "identity"
FILE = f"{IDENTITY}.json"
IDENTITY_SECONDS = 20.0  # How long a process waits for another one that is creating the id, before it raises MetaError.
POLL_SECONDS = 0.1


def installation_id(location: Location) -> str:
    """Returns the id of the installation, and creates it if it does not exist. `location` is the location of any destination of the
    installation. Raises MetaError if the id cannot be read or written.
    """
    if known := known_installation_id(location):
        return known
    records, lock, deadline = (
        _records(location),
        open_table_lock(location, IDENTITY),
        time.monotonic() + IDENTITY_SECONDS,
    )
    try:
        while not lock.try_acquire():
            if time.monotonic() >= deadline:
                raise MetaError(
                    f"{records.where(FILE)} cannot be written, because another process holds the lock of this record; Sluice tries again"
                )
            threading.Event().wait(POLL_SECONDS)
        if not (known := records.get(FILE) or ""):
            known = uuid.uuid4().hex
            records.put(FILE, known)
        return known
    finally:
        lock.release()


def known_installation_id(location: Location) -> str:
    """Returns the id of the installation, or "" if no process has created it yet. Raises MetaError if the id cannot be read."""
    return _records(location).get(FILE) or ""


def _records(location: Location) -> RecordStore:
    return record_store(tables_location(location))
