"""Locks a file exclusively between processes (flock). Owns the descriptor; `file_lease` and `run_lock` define what the lock guards.

The kernel releases the lock when the process ends, in whatever way, so a held lock has a living holder.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

RUN_LOCK_FILE = "run.lock"  # The run that merges a destination's tables holds this lock.


class FileLock:
    """A lock held by one descriptor of one process. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        """Whether this object holds the lock on the file that is at the path now.

        A lock on a removed or replaced file guards nothing, because another process would lock the new file.
        """
        return self._descriptor is not None and _is_file_at(self.path, self._descriptor)

    def confirm(self) -> bool:
        """Returns `held`: the kernel keeps the lock while this process lives, whether it runs or is stopped."""
        return self.held

    def try_acquire(self) -> bool:
        """Takes the lock if it is free. Returns True also if this object holds it already. Never waits."""
        if self.held:
            return True
        self.release()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except OSError:  # The file system has no locks.
            os.close(descriptor)
            raise
        if not _is_file_at(self.path, descriptor):  # The file was removed between open and flock.
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Releases the lock; no effect if it is not held. The file stays: if it were removed, two processes could lock two files of this
        name.
        """
        if self._descriptor is not None:
            # Closing the descriptor alone would leave the lock to a child that is just being started.
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = None


def is_locked(path: Path) -> bool:
    """Returns whether some process holds the lock, by taking a shared lock for a moment. Concurrent calls do not disturb each other."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _is_file_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
