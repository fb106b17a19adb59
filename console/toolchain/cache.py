"""Manages the directories of downloaded and unpacked files. A lock lets processes that start at the same time share these directories.

Every part of the toolchain gets its directory from this module, so that the variable SLUICE_CACHE moves all directories.
"""

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sluice.console.toolchain.errors import SetupError


@dataclass(frozen=True)
class Cache:
    """The directories of downloaded and unpacked files, below `root`. All these files can be downloaded or created again."""

    root: Path

    @property
    def jars(self) -> Path:
        """The directory of jars whose checksums were verified. A jar's file name contains its organisation, module and revision."""
        return self.root / "jars"

    @property
    def incoming(self) -> Path:
        """The directory of partial downloads. Only the holder of the lock writes to it."""
        return self.root / "incoming"

    @property
    def servers(self) -> Path:
        """The directory of the unpacked database servers. The directory has one subdirectory per version."""
        return self.root / "servers"

    @property
    def spark(self) -> Path:
        """The directory that contains the SPARK_HOME directories, each with a different set of Spark's files. It also contains symbolic
        links to these directories, by which a SPARK_HOME is found quickly (see `spark.home`).
        """
        return self.root / "spark"

    @property
    def classes(self) -> Path:
        """The directory of the archives of Spark's classes. The directory has one archive for each combination of Java and jars."""
        return self.root / "classes"

    @property
    def debian(self) -> Path:
        """The directory of Debian packages that were unpacked and not installed, such as libraries and Java for users without root
        rights.
        """
        return self.root / "debian"

    @property
    def lock_file(self) -> Path:
        """The lock file. A process locks this file with flock while the process changes the cache."""
        return self.root / "cache.lock"


def open_cache() -> Cache:
    """Returns the cache that SLUICE_CACHE names (default ~/.cache/sluice), and creates the cache's root directory. Raises SetupError if the
    directory cannot be created.
    """
    root = Path(os.environ.get("SLUICE_CACHE") or Path.home() / ".cache" / "sluice").absolute()
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(
            f"The cache folder {root} cannot be made ({error.strerror}); set SLUICE_CACHE to a folder you may write to."
        ) from error
    return Cache(root)


@contextlib.contextmanager
def locked(cache: Cache, when_waiting: Callable[[str], None] | None = None) -> Iterator[None]:
    """Locks the cache until the `with` block ends. If another process holds the lock, calls `when_waiting` with a sentence that says so,
    and waits for the lock. If the process that holds the lock dies, the kernel releases the lock.
    """
    try:
        handle = cache.lock_file.open("a")
    except OSError as error:
        raise storage_failed(cache, error, 0) from error
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if when_waiting:
                when_waiting(
                    f"Another process of Sluice is filling the cache {cache.root}; waiting until that process has finished."
                )
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def require_space(cache: Cache, needed_bytes: int) -> None:
    """Raises SetupError if the disk of the cache has too little space for a download or an unpacked archive."""
    free_bytes = shutil.disk_usage(cache.root).free
    if free_bytes < needed_bytes:
        raise disk_full(cache, needed_bytes)


def storage_failed(cache: Cache, error: OSError, needed_bytes: int) -> SetupError:
    """Returns the SetupError to raise after an error of the file system. Its message says that the disk is full if the error means a full
    disk, an exhausted quota or a file that is too large. `needed_bytes` is the space that the message then names.
    """
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return disk_full(cache, needed_bytes)
    return SetupError(
        f"A file of the cache could not be written ({error}); make {cache.root} writable"
        " or set SLUICE_CACHE to a folder you may write to."
    )


def disk_full(cache: Cache, needed_bytes: int) -> SetupError:
    """Returns the error for a full disk. The error's message contains the space that is needed."""
    return SetupError(
        f"The disk of {cache.root} is full: about {needed_bytes // 1_000_000 + 1} MB are needed; free some "
        "space on that disk, or set SLUICE_CACHE to a folder on another disk."
    )
