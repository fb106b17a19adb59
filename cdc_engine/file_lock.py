"""Locks a file exclusively between processes (flock). `file_lease` and `run_lock` define what the lock protects.

The kernel releases the lock when the process ends, even after a crash. So the process that holds a lock is alive.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

RUN_LOCK_FILE = "run.lock"  # The run that merges a destination's tables holds the lock of this file.


class FileLock:
    """A lock on a file. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        """Whether this object holds the lock of the file that is at the path now. If the file was removed or replaced, the lock of the old
        file protects nothing, because another process would lock the new file.
        """
        return self._descriptor is not None and _is_file_at(self.path, self._descriptor)

    def confirm(self) -> bool:
        """Returns `held`. Nothing else needs to be confirmed: the kernel keeps the lock while this process exists, even if the process is
        suspended.
        """
        return self.held

    def try_acquire(self) -> bool:
        """Takes the lock if it is free, without waiting. Returns whether this object holds the lock now."""
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
        except OSError:  # Passes the error on: the file system does not support locks.
            os.close(descriptor)
            raise
        # Gives up if the file was removed between open and flock, because the lock of a removed file protects nothing.
        if not _is_file_at(self.path, descriptor):
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Releases the lock, if it is held. Does not remove the file: otherwise one process could hold the lock of the removed file while
        another process locks a new file at the same path.
        """
        if self._descriptor is not None:
            # Closing the descriptor is not enough: a child process that is being started has a copy of it, and would keep the lock.
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = None


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Locks a file until the block ends. Waits while another process or thread holds the lock. Nobody may remove the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        try:
            yield
        finally:
            # As in `FileLock.release`: a child process that is being started must not keep the lock.
            fcntl.flock(handle, fcntl.LOCK_UN)


def is_locked(path: Path) -> bool:
    """Returns whether a process holds the lock. Takes a shared lock for a moment, so that simultaneous calls do not see each other as
    holders.
    """
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
