"""Holds the run lock: one writing run per destination. Taken in runs; the sensor and the console read it.

Delta on a local disk does not protect a table against two writers. A run that was given up but still lives is waited for here.

A run that drains holds the drain lock while it is attached, and the run lock only while it merges, so that publications and backfills run
between two batches. A process that waits for the run lock holds a third lock, and a draining run lets it go first."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from sluice.cdc_engine.contracts import LedgerLocation
from sluice.cdc_engine.errors import CanalServiceError, MetaError
from sluice.cdc_engine.file_lock import FileLock, is_locked
from sluice.cdc_engine.ha.leases import Lock, open_run_lock
from sluice.cdc_engine.ha.leases import run_lock_held as is_held
from sluice.cdc_engine.records.location import Location, as_location

POLL_SECONDS = 0.1
WAITING_FILE = "run.waiting"  # One of the processes that wait for the run lock holds this file's lock.
DRAIN_LOCK_FILE = "drain.lock"  # The run that drains holds this lock while it is attached.
POLL_SHARED_SECONDS = 0.5  # The interval of attempts to take a lock that other hosts share.
_taken: dict[str, Lock] = {}  # The run locks of this process, by the destination's folder.


class RunLockTimeoutError(CanalServiceError):
    """Another run of the destination is still writing."""

    code = "RUN_LOCK_TIMEOUT"


class RunLockLostError(CanalServiceError):
    """The run lock went to another process, or may have."""

    code = "RUN_LOCK_LOST"


@contextlib.contextmanager
def run_lock(location: Location, timeout_seconds: float = 0.0) -> Iterator[Callable[[], str]]:
    """Holds the destination's run lock. Waits for it up to `timeout_seconds`, then raises RunLockTimeoutError.

    Yields the fence: a function that asks the lock's store and returns why this run may not write any more, or an empty text. Raises
    RunLockLostError if the block succeeded and the lock was lost by then. The lock ends with the process, so a killed run blocks nobody.
    """
    lock = open_run_lock(location)
    where = as_location(location)
    waiting = FileLock(where.directory / WAITING_FILE)
    deadline = time.monotonic() + timeout_seconds
    try:
        while not lock.try_acquire():
            if time.monotonic() >= deadline:
                raise RunLockTimeoutError(
                    f"another run of {where.destination} still holds its run lock after {timeout_seconds:g} s: "
                    "wait for it or end it; this batch is handed out again"
                )
            # A shared folder may not support locks; then no holder yields to waiting processes.
            with contextlib.suppress(OSError):
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

    Asks the lock's store. Raises MetaError if it does not answer.
    """
    where = as_location(location)
    lock = _taken.get(str(where.directory))
    if lock is not None and not lock.confirm():
        raise RunLockLostError(_lost(where))


def run_lock_fence(location: Location) -> Callable[[], str]:
    """Returns the fence of the run lock that this process holds, as `run_lock` yields it; a fence that always refuses if it holds none."""
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
        f"this run does not hold the run lock of {where.destination} any more (its host was paused, or lost its connection to "
        "the lock), so it writes no further table. A batch is handed out again; start anything else again, and compare with "
        f"`sluice equal` {where.destination} what it wrote before"
    )


def run_lock_held(location: Location) -> bool:
    """Returns whether a run of the destination is merging now."""
    return is_held(location)


def run_lock_wanted(destination_dir: Path) -> bool:
    """Returns whether a process waits for the run lock now."""
    return is_locked(destination_dir / WAITING_FILE)


@contextlib.contextmanager
def drain_lock(destination_dir: Path, timeout_seconds: float = 1.0) -> Iterator[bool]:
    """Yields True if this run is the one that drains, until the block ends; False if another run holds the lock for the whole time given.

    The lock ends with the process. A check of the lock holds it for a moment, so one failed try proves nothing.
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
    """Returns whether a draining run of the destination is attached."""
    return is_locked(destination_dir / DRAIN_LOCK_FILE)
