"""An exclusive lock between processes on a file (flock). Owns the descriptor; `lease` and `client.run_lock` say what it guards.

The kernel frees it when the process ends, however it ends; so a lock that is held has a living holder.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

RUN_LOCK_FILE = "run.lock"  # of a destination: who merges its tables


class FileLock:
    """Held by one descriptor of one process at a time. Not for sharing between threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        """Whether this object holds the lock, on the file that stands at the path now.

        A lock on a file that was removed or replaced guards nothing: another process would lock the new one.
        """
        return self._descriptor is not None and _is_file_at(self.path, self._descriptor)

    def confirm(self) -> bool:
        """As `held`: the kernel keeps the lock for as long as this process lives, whether it runs or stands still."""
        return self.held

    def try_acquire(self) -> bool:
        """Takes the lock if it is free; True also if it is held already. Never waits."""
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
        if not _is_file_at(self.path, descriptor):  # removed between open and flock
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Gives the lock back; without effect if it is not held. The file stays: removing it could free a lock twice."""
        if self._descriptor is not None:
            # Closing alone leaves it to a child that is just being started.
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = None


def is_locked(path: Path) -> bool:
    """Whether some process holds the lock. Looks for a moment with a shared lock, which another such look does not disturb."""
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
