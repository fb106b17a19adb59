"""Replaces files as a whole: after a crash a file has its old or its new content, never a part. Used by all packages that keep files."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from sluice.cdc_engine.errors import MetaError

FileStamp = tuple[int, int, int]  # Inode, time of the last write in ns, and size.
# A file that was written within this time may be written again with the same modification time: the clocks of file systems have a
# resolution of up to 10 ms.
RECENT_NS = 50_000_000


def replace_file(path: Path, content: str | bytes) -> None:
    """Replaces a file durably: writes a `.tmp` file next to it, syncs it, renames it and syncs the folder, which is created if it is
    missing.

    Raises OSError; the file is then unchanged.
    """
    write_file(path, content.encode() if isinstance(content, str) else content)
    sync(path.parent)


def write_file(path: Path, content: bytes) -> None:
    """Replaces a file as `replace_file` does, except that the caller syncs the folder. Raises OSError; the file is then unchanged."""
    temporary = path.with_suffix(".tmp")
    try:
        make_folder(path.parent)
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def keep_file(path: Path, content: str | bytes) -> None:
    """Replaces a file as `replace_file` does. Raises MetaError, which states what to do."""
    try:
        replace_file(path, content)
    except OSError as error:
        raise MetaError(
            f"{path} could not be written ({error.strerror}): free space on its disk, or permit writing to its folder"
        ) from error


def stamp_of(path: Path) -> FileStamp | None:
    """Returns a stamp that changes when a file is replaced or written. None if the file does not exist, or was written so recently that its
    next content may get the same time.
    """
    try:
        return stamp_in(path.stat())
    except OSError:
        return None


def stamp_in(found: os.stat_result) -> FileStamp | None:
    """Returns what `stamp_of` returns, for a file whose state is known."""
    settled = abs(time.time_ns() - found.st_mtime_ns) > RECENT_NS
    return (found.st_ino, found.st_mtime_ns, found.st_size) if settled else None


def make_folder(path: Path) -> None:
    """Creates a folder durably, with its parents: the parent of each created folder is synced. Raises OSError."""
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync(path.parent)


def rename(path: Path, renamed: Path) -> None:
    """Renames a file within its folder durably. The caller syncs its content. Raises OSError."""
    path.rename(renamed)
    sync(renamed.parent)


def sync(path: Path) -> None:
    """Syncs the content of a file, or the names in a folder, to disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
