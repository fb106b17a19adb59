"""Manages the directories of downloaded and unpacked files, and the lock with which several starts share them.

Every part of the toolchain gets its directory here, so one variable, SLUICE_CACHE, moves all of them."""

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
    """The directories under one cache root. Everything in them can be downloaded again."""

    root: Path

    @property
    def jars(self) -> Path:
        """The verified jars, by organisation, module and revision."""
        return self.root / "jars"

    @property
    def incoming(self) -> Path:
        """The partial downloads. Only the holder of the lock writes here."""
        return self.root / "incoming"

    @property
    def servers(self) -> Path:
        """The unpacked database servers, one directory per version."""
        return self.root / "servers"

    @property
    def spark(self) -> Path:
        """Spark's own files, one directory per installed set of them."""
        return self.root / "spark"

    @property
    def classes(self) -> Path:
        """The archives of Spark's classes."""
        return self.root / "classes"

    @property
    def debian(self) -> Path:
        """Debian packages that were unpacked without root: libraries and Java."""
        return self.root / "debian"

    @property
    def lock_file(self) -> Path:
        """The file that is locked with flock while anything in the cache changes."""
        return self.root / "cache.lock"


def open_cache() -> Cache:
    """Returns the cache that SLUICE_CACHE names (by default ~/.cache/sluice), and creates its root."""
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
    """Locks the cache exclusively. A dead process does not block, because the kernel drops its flock."""
    try:
        handle = cache.lock_file.open("a")
    except OSError as error:
        raise storage_failed(cache, error, 0) from error
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if when_waiting:
                when_waiting(f"Another start of Sluice is filling {cache.root}; waiting for it.")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def require_space(cache: Cache, needed_bytes: int) -> None:
    """Raises SetupError before a download or an unpacking for which there is no space."""
    free_bytes = shutil.disk_usage(cache.root).free
    if free_bytes < needed_bytes:
        raise disk_full(cache, needed_bytes)


def storage_failed(cache: Cache, error: OSError, needed_bytes: int) -> SetupError:
    """Returns the error for a refusal of the file system; a full disk, a quota and a size limit are the same for the user."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return disk_full(cache, needed_bytes)
    return SetupError(
        f"A file of the cache could not be written ({error}); make {cache.root} writable"
        " or set SLUICE_CACHE to a folder you may write to."
    )


def disk_full(cache: Cache, needed_bytes: int) -> SetupError:
    """Returns the error for a full disk, with the space that is needed."""
    return SetupError(
        f"The disk of {cache.root} is full: about {needed_bytes // 1_000_000 + 1} MB are needed;"
        " free some space there or set SLUICE_CACHE to a folder on another disk."
    )
