"""One writer a destination: the lock a run holds for as long as it merges. Taken inside runs, looked at by the sensor and the console.

Delta on a local disk does not protect a table against two writers; a run that was given up but still lives is waited for here.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from cdc_engine.errors import CanalServiceError
from cdc_engine.ha.file_lock import RUN_LOCK_FILE, FileLock, is_locked

POLL_SECONDS = 0.1


class RunLockTimeoutError(CanalServiceError):
    """Another run of the destination is still writing."""

    code = "RUN_LOCK_TIMEOUT"


@contextlib.contextmanager
def run_lock(destination_dir: Path, timeout_seconds: float = 0.0) -> Iterator[None]:
    """Holds the destination's run lock; waits for it up to `timeout_seconds`, then raises RunLockTimeoutError.

    The lock ends with the process, so a run that was killed blocks nobody.
    """
    lock = FileLock(destination_dir / RUN_LOCK_FILE)
    deadline = time.monotonic() + timeout_seconds
    while not lock.try_acquire():
        if time.monotonic() >= deadline:
            raise RunLockTimeoutError(
                f"another run of {destination_dir.name} still holds {lock.path} after {timeout_seconds:g} s: "
                "wait for it or end it; this batch is handed out again"
            )
        threading.Event().wait(POLL_SECONDS)
    try:
        yield
    finally:
        lock.release()


def run_lock_held(destination_dir: Path) -> bool:
    """Whether a run of the destination is merging now."""
    return is_locked(destination_dir / RUN_LOCK_FILE)
