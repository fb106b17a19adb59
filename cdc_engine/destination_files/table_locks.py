"""Locks of Delta tables that several destinations write, one a table. Taken by runs, within the run locks of their destinations.

They are where the ledgers of conf/ are: in the folder beside the destinations', or where several hosts reach them. Each has a text beside
it: who writes the table now, and what a holder who died may have left running.
"""

from __future__ import annotations

import contextlib
import hashlib
import posixpath

from cdc_engine.contracts import DestinationDir
from cdc_engine.documents.places import Place
from cdc_engine.documents.texts import Texts, texts_of
from cdc_engine.ha.file_lock import FileLock
from cdc_engine.ha.leases import Lock, open_table_lock, tables_place


class TableLock:
    """The lock of one table. For one thread. All methods raise MetaError where nobody answers."""

    def __init__(self, place: Place, table: str) -> None:
        """`table`: its path below the lake."""
        where = tables_place(place)
        digest = hashlib.sha256(posixpath.normpath(table.strip("/")).encode()).hexdigest()[:32]
        self._lock: Lock = open_table_lock(place, digest)
        self._waiting = FileLock(where.directory / f"{digest}.waiting")
        self._texts: Texts = texts_of(DestinationDir.of(where))
        self._name = f"tables/{digest}.json"

    @property
    def held(self) -> bool:
        """Whether this object holds the lock, and nobody else can yet."""
        return self._lock.held

    def confirm(self) -> bool:
        """Asks where the lock is kept, now, whether this object still holds it."""
        return self._lock.confirm()

    def try_take(self) -> bool:
        """Takes the lock if it is free. Never waits."""
        taken = self._lock.try_acquire()
        if taken:
            self._waiting.release()
        return taken

    def wait_turn(self) -> bool:
        """Says that this one waits, until the lock is taken or given up; False where another one of this host waits already.

        Who comes back to a table lets it go first: a run that drains would be faster at each try.
        """
        with contextlib.suppress(OSError):  # a folder may know no locks: then nobody gives way
            return self._waiting.try_acquire()
        return True

    def writer(self) -> str:
        """The text that the last holder left, and did not take back; empty where there is none."""
        return self._texts.read(self._name) or ""

    def write(self, text: str) -> None:
        """For who comes after this one, should it die; to be called by who holds the lock. Empty: there is nothing to know."""
        if text:
            self._texts.keep(self._name, text)
        else:
            self._texts.remove(self._name)

    def release(self) -> None:
        """Gives it back; without effect if it is not held."""
        self._waiting.release()
        self._lock.release()
