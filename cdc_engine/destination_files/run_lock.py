"""Implements the run lock, which allows only one run of a destination to write at a time. Runs and a few other writers, such as `sluice
quarantine replay`, take the lock. The sensor and the console check it.

Delta on a local disk does not protect a table against two writers. So a run must wait as long as the process of another run still exists,
even if Dagster has given up that run.

A run with `runs: drain` holds the drain lock as long as it takes batches. A draining run holds the run lock only while it merges, so that
publications and backfills can run between two batches. A process that waits for the run lock holds a third lock (`run.waiting`). A draining
run that sees this lock lets the waiting process go first. If the ledger is shared, the three locks are stored with the ledger, and are
valid on all hosts.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator

from sluice.cdc_engine.contracts import LedgerLocation
from sluice.cdc_engine.errors import CanalServiceError, MetaError
from sluice.cdc_engine.ha.leases import DRAIN_LOCK, RUN_LOCK, RUN_WAITING, Lock, acquired_within, lock_held, open_lock
from sluice.cdc_engine.records.location import Location, as_location

POLL_SECONDS = 0.1
# Attempts to take the drain lock fail only after this time. A process that checks a lock in a file holds it for a moment, so one failed
# attempt does not prove that a run holds the lock.
CHECK_SECONDS_MAX = 1.0
POLL_SHARED_SECONDS = 0.5  # The interval of attempts to take a lock that hosts share.
_taken: dict[str, Lock] = {}  # The run locks that this process holds, by the destination's folder.


class RunLockTimeoutError(CanalServiceError):
    """Raised if another run of the destination still holds the run lock."""

    code = "RUN_LOCK_TIMEOUT"


class RunLockLostError(CanalServiceError):
    """Raised if this run has lost the run lock, so that another process may hold it."""

    code = "RUN_LOCK_LOST"


@contextlib.contextmanager
def run_lock(location: Location, timeout_seconds: float = 0.0) -> Iterator[Callable[[], str]]:
    """Holds the destination's run lock during the block. Waits for the lock up to `timeout_seconds`, then raises RunLockTimeoutError. If
    this process is killed, the lock becomes free: a lock in a file at once, a shared lock after `session_seconds`.

    Yields the fence: a function that queries the lock's store and returns why this run may not write any more, or "" if it may write. At
    the end of a successful block, raises RunLockLostError if the lock was lost.
    """
    lock = open_lock(location, RUN_LOCK)
    where = as_location(location)
    waiting = open_lock(where, RUN_WAITING)
    deadline = time.monotonic() + timeout_seconds
    try:
        while not lock.try_acquire():
            if time.monotonic() >= deadline:
                raise RunLockTimeoutError(
                    f"another run of {where.destination} still holds the run lock after {timeout_seconds:g} "
                    "s: wait until that run ends, or end that run. If this run merges a batch, Sluice hands the batch out again"
                )
            # Continues if the folder does not support locks, or if the record store does not answer. The only effect is that a draining run
            # does not notice this process.
            with contextlib.suppress(OSError, MetaError):
                waiting.try_acquire()
            threading.Event().wait(POLL_SHARED_SECONDS if where.is_shared else POLL_SECONDS)
        waiting.release()
        _taken[str(where.directory)] = lock
        try:
            yield functools.partial(_why_not_writer, where, lock)
            if not lock.held:
                raise RunLockLostError(_lost(where))
        finally:
            _taken.pop(str(where.directory), None)
    finally:
        waiting.release()
        lock.release()


def refuse_if_lost(location: Location) -> None:
    """Raises RunLockLostError if this process took the run lock and has lost it, so that another run may be writing. Queries the lock's
    store, and raises MetaError if the record store does not answer.
    """
    where = as_location(location)
    lock = _taken.get(str(where.directory))
    if lock is not None and not lock.confirm():
        raise RunLockLostError(_lost(where))


def run_lock_fence(location: Location) -> Callable[[], str]:
    """Returns the fence of the run lock that this process holds, for code that does not get the fence from `run_lock`. If this process
    holds no run lock, the fence refuses every write.
    """
    where = as_location(location)
    lock = _taken.get(str(where.directory))
    return functools.partial(_why_not_writer, where, lock) if lock else lambda: _lost(where)


def _why_not_writer(where: LedgerLocation, lock: Lock) -> str:
    try:
        return "" if lock.confirm() else _lost(where)
    except MetaError as error:
        return f"this run cannot confirm that it still holds the run lock of {where.destination}: {error}"


def _lost(where: LedgerLocation) -> str:
    return (
        f"this run does not hold the run lock of {where.destination} any more (its host was paused, or lost "
        "its connection to the lock), so the run writes no further table. If the run merged a batch, Sluice "
        "hands the batch out again. If not, start the operation again, and compare the tables that the run "
        f"wrote with `sluice equal {where.destination}`"
    )


def run_lock_held(location: Location) -> bool:
    """Returns whether a process holds the run lock of the destination now."""
    return lock_held(location, RUN_LOCK)


def run_lock_wanted(location: Location) -> bool:
    """Returns whether a process is waiting for the run lock. Returns False if the store of the locks does not answer."""
    with contextlib.suppress(MetaError):
        return lock_held(location, RUN_WAITING)
    return False


@contextlib.contextmanager
def drain_lock(location: Location, timeout_seconds: float = CHECK_SECONDS_MAX) -> Iterator[Callable[[], str]]:
    """Lets a run hold the drain lock during the block. Yields a function that tries to take the lock, and returns "" if it succeeds.
    Otherwise the function returns why this run may not drain: another run has the lock, or the record store does not answer.

    If another run has the lock, the function waits for `timeout_seconds`. With a shared ledger, it waits `session_seconds` longer, because
    a process can take the lock of a killed run only after it has watched the lock for this time.
    """
    where = as_location(location)
    lock = open_lock(where, DRAIN_LOCK)
    seconds = timeout_seconds + (where.session_seconds if where.is_shared else 0.0)

    def why_not() -> str:
        try:
            return (
                ""
                if acquired_within(lock, seconds)
                else f"another run of {where.destination} already merges its batches (`runs: drain`)"
            )
        except MetaError as error:
            return (
                f"this run cannot find out whether another run of {where.destination} drains: {error}; if this lasts, check that the "
                "ledger's store (`meta` in sluice.yaml) answers on this host"
            )

    try:
        with contextlib.suppress(MetaError):
            # Tries at once, although `why_not` tries again. If another run holds the shared lock, this process waits `session_seconds` to
            # find out whether the other run is dead. The wait begins with this attempt.
            lock.try_acquire()
        yield why_not
    finally:
        lock.release()


def drain_lock_held(location: Location) -> bool:
    """Returns whether a run of the destination holds the drain lock now."""
    return lock_held(location, DRAIN_LOCK)
