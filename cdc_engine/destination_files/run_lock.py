"""One writer a destination: the lock a run holds for as long as it merges. Taken inside runs, looked at by the sensor and the console.

Delta on a local disk does not protect a table against two writers; a run that was given up but still lives is waited for here.

A run that drains holds a lock of its own for as long as it is attached, and the run lock only while it merges: what publishes or backfills
gets its turn between two batches. Whoever waits for the run lock says so by a third lock, and a draining run lets it go first.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from cdc_engine.contracts import MetaPlace
from cdc_engine.documents.places import Place, as_place
from cdc_engine.errors import CanalServiceError, MetaError
from cdc_engine.ha.file_lock import FileLock, is_locked
from cdc_engine.ha.leases import Lock, open_run_lock
from cdc_engine.ha.leases import run_lock_held as is_held

POLL_SECONDS = 0.1
WAITING_FILE = "run.waiting"  # held by one of those who wait for the run lock
DRAIN_LOCK_FILE = "drain.lock"  # held by the run that drains, for as long as it is attached
POLL_SHARED_SECONDS = 0.5  # of a lock on other hosts
_taken: dict[str, Lock] = {}  # by this process, by the destination's folder


class RunLockTimeoutError(CanalServiceError):
    """Another run of the destination is still writing."""

    code = "RUN_LOCK_TIMEOUT"


class RunLockLostError(CanalServiceError):
    """The run lock went to somebody else, or may have."""

    code = "RUN_LOCK_LOST"


@contextlib.contextmanager
def run_lock(place: Place, timeout_seconds: float = 0.0) -> Iterator[Callable[[], str]]:
    """Holds the destination's run lock; waits for it up to `timeout_seconds`, then raises RunLockTimeoutError.

    Yields the fence: a function that asks where the lock is kept, and returns why this run may not write any more, or nothing.
    Raises RunLockLostError where the block ended well and the lock was lost by then. The lock ends with the process, so a run that was
    killed blocks nobody.
    """
    lock = open_run_lock(place)
    where = as_place(place)
    waiting = FileLock(where.directory / WAITING_FILE)
    deadline = time.monotonic() + timeout_seconds
    try:
        while not lock.try_acquire():
            if time.monotonic() >= deadline:
                raise RunLockTimeoutError(
                    f"another run of {where.destination} still holds its run lock after {timeout_seconds:g} s: "
                    "wait for it or end it; this batch is handed out again"
                )
            with contextlib.suppress(OSError):  # a shared folder may know no locks: then nobody gives way
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


def refuse_if_lost(place: Place) -> None:
    """Raises RunLockLostError where this process took the run lock and does not hold it any more: another run may write by now.

    The place that keeps the lock is asked. Raises MetaError where it does not answer.
    """
    where = as_place(place)
    lock = _taken.get(str(where.directory))
    if lock is not None and not lock.confirm():
        raise RunLockLostError(_lost(where))


def run_lock_fence(place: Place) -> Callable[[], str]:
    """Returns the fence of the run lock that this process holds, as `run_lock` yields it; one that refuses where it holds none."""
    where = as_place(place)
    lock = _taken.get(str(where.directory))
    return functools.partial(_why_not_writer, where, lock) if lock else lambda: _lost(where)


def _why_not_writer(where: MetaPlace, lock: Lock) -> str:
    try:
        return "" if lock.confirm() else _lost(where)
    except MetaError as error:
        return f"nobody can say whether this run still holds the run lock of {where.destination}: {error}"


def _lost(where: MetaPlace) -> str:
    return (
        f"this run does not hold the run lock of {where.destination} any more (its host stood still, or was cut off from where the lock "
        "is), so it writes no further table. A batch is handed out again; begin anything else again, and compare with `sluice equal` "
        f"{where.destination} what it wrote before"
    )


def run_lock_held(place: Place) -> bool:
    """Whether a run of the destination is merging now."""
    return is_held(place)


def run_lock_wanted(destination_dir: Path) -> bool:
    """Whether somebody waits for the run lock now."""
    return is_locked(destination_dir / WAITING_FILE)


@contextlib.contextmanager
def drain_lock(destination_dir: Path, timeout_seconds: float = 1.0) -> Iterator[bool]:
    """Whether this run is the one that drains, for as long as the block lasts; not where another one is for all of the time given.

    The lock ends with the process. A look at it holds it for a moment, so one try says nothing.
    """
    lock = FileLock(destination_dir / DRAIN_LOCK_FILE)
    deadline = time.monotonic() + timeout_seconds
    while not lock.try_acquire() and time.monotonic() < deadline:
        threading.Event().wait(POLL_SECONDS)
    try:
        yield lock.held
    finally:
        lock.release()


def drain_lock_held(destination_dir: Path) -> bool:
    """Whether a run of the destination is attached and drains."""
    return is_locked(destination_dir / DRAIN_LOCK_FILE)
