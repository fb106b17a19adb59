"""Takes and checks the run lock: one writing run per destination. Runs take it; the sensor and the console check it.

Delta on a local disk does not protect a table against two writers. So a run waits here while a process of an abandoned run still exists.

A run that drains holds the drain lock while it is attached. It holds the run lock only while it merges, so that publications and backfills
run between two batches. A process that waits for the run lock holds a third lock (`run.waiting`); a draining run then releases the run lock
for it. If the ledger is shared, the three locks are stored with it and apply to all hosts.
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
# How long attempts to take a lock are repeated. A process that only checks a lock in a file takes it for a moment, so one failed attempt
# does not mean that a run has the lock.
CHECK_SECONDS_MAX = 1.0
POLL_SHARED_SECONDS = 0.5  # The interval of attempts to take a lock that other hosts share.
_taken: dict[str, Lock] = {}  # The run locks of this process, by the destination's folder.


class RunLockTimeoutError(CanalServiceError):
    """Another run of the destination is still writing."""

    code = "RUN_LOCK_TIMEOUT"


class RunLockLostError(CanalServiceError):
    """This run has lost the run lock, or cannot exclude that another process has it."""

    code = "RUN_LOCK_LOST"


@contextlib.contextmanager
def run_lock(location: Location, timeout_seconds: float = 0.0) -> Iterator[Callable[[], str]]:
    """Takes the destination's run lock until the block ends. Waits for it up to `timeout_seconds`, then raises RunLockTimeoutError.

    Yields the fence: a function that queries the lock's store and returns why this run may not write any more, or an empty text. Raises
    RunLockLostError if the lock is lost at the end of a block that succeeded. The lock ends with the process, so a killed run blocks
    nobody.
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
                    "s: wait until that run ends, or end that run; Sluice hands this batch out again"
                )
            # The folder or the store may not support locks, or not answer. Then a draining run does not know that this process waits.
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
    """Raises RunLockLostError if this process took the run lock and has lost it: another run may be writing.

    Queries the lock's store. Raises MetaError if it does not answer.
    """
    where = as_location(location)
    lock = _taken.get(str(where.directory))
    if lock is not None and not lock.confirm():
        raise RunLockLostError(_lost(where))


def run_lock_fence(location: Location) -> Callable[[], str]:
    """Returns the fence of the run lock that this process holds, as `run_lock` yields it. Without a lock, the fence refuses every write."""
    where = as_location(location)
    lock = _taken.get(str(where.directory))
    return functools.partial(_why_not_writer, where, lock) if lock else lambda: _lost(where)


def _why_not_writer(where: LedgerLocation, lock: Lock) -> str:
    try:
        return "" if lock.confirm() else _lost(where)
    except MetaError as error:
        return f"whether this run still holds the run lock of {where.destination} is unknown: {error}"


def _lost(where: LedgerLocation) -> str:
    return (
        f"this run does not hold the run lock of {where.destination} any more (its host was paused, or lost "
        "its connection to the lock), so the run writes no further table. If the run merged a batch, Sluice "
        "hands the batch out again. If not, start the operation again, and compare the tables that the run "
        f"wrote with `sluice equal {where.destination}`"
    )


def run_lock_held(location: Location) -> bool:
    """Returns whether a run of the destination is merging now."""
    return lock_held(location, RUN_LOCK)


def run_lock_wanted(location: Location) -> bool:
    """Returns whether a process waits for the run lock now; False if the store of the locks does not answer."""
    with contextlib.suppress(MetaError):
        return lock_held(location, RUN_WAITING)
    return False


@contextlib.contextmanager
def drain_lock(location: Location, timeout_seconds: float = CHECK_SECONDS_MAX) -> Iterator[Callable[[], str]]:
    """Tries to take the drain lock for the time of the block. Yields a function that returns an empty text once this run has the lock.
    Otherwise it returns why this run may not drain: another run has the lock, or its store does not answer.

    If another run has the lock, the function waits for the timeout. With a shared ledger, it also waits for the length of a session,
    because the lock of a killed run is free after that time. A process knows only the renewals that it saw itself, so each run waits for
    the whole session.
    """
    where = as_location(location)
    lock = open_lock(where, DRAIN_LOCK)
    seconds = timeout_seconds + (where.session_seconds if where.is_shared else 0.0)

    def why_not() -> str:
        try:
            return (
                "" if acquired_within(lock, seconds) else f"another run of {where.destination} is attached and drains"
            )
        except MetaError as error:
            return (
                f"whether another run of {where.destination} drains is unknown: {error}; if this lasts, check that the ledger's store "
                "(`meta` in sluice.yaml) answers on this host"
            )

    try:
        with contextlib.suppress(MetaError):
            lock.try_acquire()  # If another run holds the lock, this process now watches whether that run renews it.
        yield why_not
    finally:
        lock.release()


def drain_lock_held(location: Location) -> bool:
    """Returns whether a draining run of the destination is attached."""
    return lock_held(location, DRAIN_LOCK)
