"""Opens leases and locks: the lease and the locks of a destination, and the locks of Delta tables that several destinations write. If
several hosts share the ledger, leases and locks are in the ledger's store, otherwise in files.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import threading
import time
from typing import TYPE_CHECKING, Protocol

from sluice.cdc_engine.contracts import Holder, LedgerLocation
from sluice.cdc_engine.errors import ConfigurationError, LeaseLostError
from sluice.cdc_engine.file_lock import RUN_LOCK_FILE, FileLock, is_locked
from sluice.cdc_engine.ha import file_lease
from sluice.cdc_engine.ha.beat_lock import BeatLock, LockWatcher
from sluice.cdc_engine.ha.file_lease import FileLease
from sluice.cdc_engine.ha.session import lost_sentence
from sluice.cdc_engine.ports import Lease
from sluice.cdc_engine.records.location import Location, as_location, record_store
from sluice.extras import Extra, require

if TYPE_CHECKING:
    from sluice.cdc_engine.ha.zookeeper_lock import Nodes

LEASE, RUN_LOCK, RUN_WAITING, DRAIN_LOCK, READING = "lease", "run-lock", "run-waiting", "drain-lock", "reading"
# Name of a lock of a destination's runs → its file in the destination's folder. RUN_LOCK is held by the run that merges, RUN_WAITING by one
# of the processes that wait for RUN_LOCK, DRAIN_LOCK by the run that drains, and READING by the run that reads rows for snapshots.
FILES = {
    RUN_LOCK: RUN_LOCK_FILE,
    RUN_WAITING: "run.waiting",
    DRAIN_LOCK: "drain.lock",
    READING: "snapshots/reading.lock",
}
POLL_SECONDS = 0.5
# The name of the folder with the locks of Delta tables that several destinations write. The folder is next to the folders of destinations,
# so no destination may have this name.
TABLES = "_sluice_tables"


class Lock(Protocol):
    """A lock with one holder at a time."""

    @property
    def held(self) -> bool:
        """Whether this object holds the lock and no other process can have taken it."""

    def try_acquire(self) -> bool:
        """Takes the lock if it is free, without waiting. Returns whether this object holds the lock now; it may have held the lock before
        the call. Raises MetaError if the record store does not answer.
        """

    def confirm(self) -> bool:
        """Queries the record store, and returns whether this object still holds the lock. Raises MetaError if the record store does not
        answer.
        """

    def release(self) -> None:
        """Releases the lock, if it is held."""


class SharedLock(Lock, Protocol):
    """A lock that only one process of all hosts can hold at a time."""

    @property
    def token(self) -> int:
        """While the lock is held, a number that is greater than the tokens of all earlier holders; otherwise 0."""


class SharedLease:
    """The lease of a destination whose ledger several hosts share (implements `ports.Lease`). It is held as long as `lock` is held."""

    def __init__(self, location: LedgerLocation, lock: SharedLock) -> None:
        self._location, self._lock = location, lock

    @property
    def token(self) -> int:
        return self._lock.token

    def try_acquire(self) -> bool:
        return self._lock.try_acquire()

    def holder(self) -> Holder | None:
        return read_holder(self._location)

    def check(self) -> None:
        if not self._lock.held:
            raise LeaseLostError(lost_sentence(self._location.destination, "another process may hold the lease now"))

    def release(self) -> None:
        self._lock.release()


def acquired_within(lock: Lock | Lease, seconds: float) -> bool:
    """Tries for up to `seconds` to take a lock. Returns whether the lock was taken. Raises MetaError if the record store does not answer.

    If the holder of a shared lock was killed, another process can take the lock only when `meta.session_seconds` have passed without a sign
    of the holder. So `seconds` must be more than `meta.session_seconds` to replace a killed holder.
    """
    deadline = time.monotonic() + seconds
    while not lock.try_acquire():
        if time.monotonic() >= deadline:
            return False
        threading.Event().wait(POLL_SECONDS)
    return True


def open_lease(location: Location) -> Lease:
    """Opens the lease of a destination, without taking it. Raises ConfigurationError if a library is missing, and MetaError if the record
    store does not answer.
    """
    location = as_location(location)
    return SharedLease(location, _shared_lock(location, LEASE)) if location.is_shared else FileLease(location.directory)


def open_lock(location: Location, name: str) -> Lock:
    """Opens a lock of a destination's runs, by its name in FILES, without taking it. Raises ConfigurationError if a library is missing, and
    MetaError if the record store does not answer.
    """
    return _lock(as_location(location), name, FILES[name])


def lock_held(location: Location, name: str) -> bool:
    """Returns whether a process on any host holds the lock `name` of FILES. For a while after the holder's death, a shared lock still
    counts as held. Raises MetaError if the record store does not answer.
    """
    where = as_location(location)
    if not where.is_shared:
        return is_locked(where.directory / FILES[name])
    holder = _holder(where, name)
    return holder is not None and holder.held


def tables_location(location: Location) -> LedgerLocation:
    """Returns the location of the locks of Delta tables that several destinations write. All destinations of one conf/ have the same
    location.
    """
    where = as_location(location)
    directory = where.directory.parent / TABLES
    return dataclasses.replace(where, destination=TABLES, directory=directory, address="", source=("", 0))


def open_table_lock(location: Location, name: str) -> Lock:
    """Opens the lock of a Delta table that several destinations write, without taking it. `name` identifies the table and consists of
    letters and digits. Raises ConfigurationError if a library is missing, and MetaError if the record store does not answer.
    """
    return _lock(tables_location(location), f"table-{name}", f"{name}.lock")


def read_holder(location: Location) -> Holder | None:
    """Returns the current or last holder of a destination's lease. Returns None if there never was a holder, or if the record of a lease in
    files cannot be read. Raises MetaError if the record store does not answer.
    """
    location = as_location(location)
    return _holder(location, LEASE) if location.is_shared else file_lease.read_holder(location.directory)


def _lock(location: LedgerLocation, name: str, file: str) -> Lock:
    """Opens a lock. The lock is `name` in the ledger's store if several hosts share the ledger, otherwise `file` in the destination's
    folder.
    """
    return _shared_lock(location, name) if location.is_shared else FileLock(location.directory / file)


def _shared_lock(location: LedgerLocation, name: str) -> SharedLock:
    if location.kind == "zookeeper":
        require(Extra.ZOOKEEPER, ConfigurationError)
        from sluice.cdc_engine.ha.zookeeper_lock import ZooKeeperLock  # noqa: PLC0415  most destinations do without kazoo

        return ZooKeeperLock(_nodes(location, name), location.session_seconds)
    return BeatLock(record_store(location), name, location.session_seconds, _watcher(location, name))


def _holder(location: LedgerLocation, name: str) -> Holder | None:
    if location.kind == "zookeeper":
        require(Extra.ZOOKEEPER, ConfigurationError)
        from sluice.cdc_engine.ha.zookeeper_lock import read_lock  # noqa: PLC0415  most destinations do without kazoo

        return read_lock(_nodes(location, name), location.session_seconds)
    _, claim, held = _watcher(location, name).look()
    return claim.holder(held=held) if claim else None


# Cached: a new watcher would have to watch the lock's record for the length of a session before it knows that the holder is dead.
@functools.cache
def _watcher(location: LedgerLocation, name: str) -> LockWatcher:
    """Returns this process's only watcher of a lock. The watcher considers the lock's holder dead if the version of the lock's record has
    not changed for `session_seconds`.
    """
    return LockWatcher(record_store(location), name, location.session_seconds)


def _nodes(location: LedgerLocation, name: str) -> Nodes:
    """Returns the ZooKeeper nodes of a lock. The lease uses Canal's nodes, because Canal's clients read them to find the running engine."""
    from sluice.cdc_engine.ha.zookeeper_lock import Nodes  # noqa: PLC0415
    from sluice.cdc_engine.records.zookeeper_client import CLUSTER, OWN, destination_path  # noqa: PLC0415

    within = functools.partial(destination_path, location.destination)
    is_lease = name == LEASE
    return Nodes(
        servers=location.zookeeper,
        held=within("running") if is_lease else within(OWN, name),
        counter=within(OWN, f"{name}-token"),
        payload=json.dumps({"active": True, "address": location.address}, separators=(",", ":")),
        present=(within("cluster", location.address), f"{CLUSTER}/{location.address}")
        if is_lease and location.address
        else (),
    )
