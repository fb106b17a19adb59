"""Implements locks for Delta tables that several destinations write, one lock per table. A run takes the lock of each such table in
addition to the run lock of its destination.

The locks are in a folder next to the destinations' folders, or in the shared record store. The holder of a lock stores the ids of its
Spark sessions with the lock. If the holder dies, the next holder ends these sessions, because they may still write.
"""

from __future__ import annotations

import contextlib
import hashlib
import posixpath

from sluice.cdc_engine.file_lock import FileLock
from sluice.cdc_engine.ha.leases import Lock, open_table_lock, tables_location
from sluice.cdc_engine.records.contract import RecordStore
from sluice.cdc_engine.records.location import Location, record_store


class StoredTableLock:
    """The lock of one Delta table. Not thread-safe. Methods raise MetaError if the record store does not answer."""

    def __init__(self, location: Location, table: str) -> None:
        """Prepares the lock without taking it. `table` is the path of the table in the lake."""
        where = tables_location(location)
        digest = hashlib.sha256(posixpath.normpath(table.strip("/")).encode()).hexdigest()[:32]
        self._lock: Lock = open_table_lock(location, digest)
        self._waiting = FileLock(where.directory / f"{digest}.waiting")
        self._records: RecordStore = record_store(where)
        self._name = f"tables/{digest}.json"

    @property
    def held(self) -> bool:
        """Whether this object holds the lock and no other process can have taken it."""
        return self._lock.held

    def confirm(self) -> bool:
        """Queries the lock's store, and returns whether this object still holds the lock."""
        return self._lock.confirm()

    def try_take(self) -> bool:
        """Takes the lock if it is free, without waiting. Returns whether this object holds the lock."""
        taken = self._lock.try_acquire()
        if taken:
            self._waiting.release()
        return taken

    def register_waiting(self) -> bool:
        """Registers this process as waiting for the lock, until it takes the lock or gives up. Returns False if another process of this
        host is waiting already.

        A process that has just released the lock does not take it again while another process waits. Otherwise a draining run would always
        be the first to take it again.
        """
        # Continues if the folder does not support locks. The only effect is that no holder notices this process.
        with contextlib.suppress(OSError):
            return self._waiting.try_acquire()
        return True

    def writer(self) -> str:
        """Returns the record that the last holder has written and not removed, or "" if there is no record."""
        return self._records.get(self._name) or ""

    def write(self, text: str) -> None:
        """Writes a record that the next holder reads if this holder dies. The caller must hold the lock. An empty text removes the
        record.
        """
        if text:
            self._records.put(self._name, text)
        else:
            self._records.remove(self._name)

    def release(self) -> None:
        """Releases the lock, if it is held, and ends the registration as waiting."""
        self._waiting.release()
        self._lock.release()
