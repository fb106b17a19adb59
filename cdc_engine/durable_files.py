"""Writes files durably, and replaces a file as a whole: after a crash, a file has either its old or its new content, never only a part."""

from __future__ import annotations

import contextlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sluice.cdc_engine.errors import MetaError

FileStamp = tuple[int, int, int]  # (inode, time of the last write in ns, size).
# A file that was written less than this many ns ago may be written again with the same modification time, because the clocks of file
# systems have a resolution of up to 10 ms. `stamp_in` returns None for such a file, because its stamp would not show the second write.
RECENT_NS = 50_000_000
# `sync_files` syncs this many files at a time, because a disk syncs several files in little more time than one.
SYNCED_AT_ONCE = 8


def replace_file(path: Path, content: str | bytes) -> None:
    """Replaces a file durably: writes a `.tmp` file next to it, syncs it, renames it, and syncs the folder. Creates the folder if it is
    missing. Raises OSError and leaves the file unchanged if the write fails.
    """
    write_file(path, content.encode() if isinstance(content, str) else content)
    sync(path.parent)


def write_file(path: Path, content: bytes) -> None:
    """Replaces a file: writes a `.tmp` file next to it, syncs it, and renames it. Does not sync the folder, which the caller must do.
    Raises OSError and leaves the file unchanged if the write fails.
    """
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
    """Replaces a file durably and as a whole. If the write fails, raises MetaError, whose message tells an operator what to do."""
    try:
        replace_file(path, content)
    except OSError as error:
        raise MetaError(
            f"{path} could not be written ({error.strerror}): free space on its disk, or permit writing to its folder"
        ) from error


def stamp_of(path: Path) -> FileStamp | None:
    """Returns a stamp of a file, which changes when the file is written or replaced. Returns None if the file does not exist, or if it was
    written so recently that another write could get the same modification time.
    """
    try:
        return stamp_in(path.stat())
    except OSError:
        return None


def stamp_in(found: os.stat_result) -> FileStamp | None:
    """Returns the stamp of a file from the result of `stat`. Returns None if the file was written less than RECENT_NS ago, because another
    write could get the same modification time.
    """
    settled = abs(time.time_ns() - found.st_mtime_ns) > RECENT_NS
    return (found.st_ino, found.st_mtime_ns, found.st_size) if settled else None


def make_folder(path: Path) -> None:
    """Creates a folder and its missing parents durably: syncs the parent of each new folder. Raises OSError if that fails."""
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync(path.parent)


def rename(path: Path, renamed: Path) -> None:
    """Renames a file within its folder, durably. The caller must have synced the file's content. Raises OSError if the rename fails."""
    path.rename(renamed)
    sync(renamed.parent)


def sync(path: Path) -> None:
    """Syncs a file's content, or a folder's list of names, to disk. Raises OSError if that fails."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_files(folder: Path) -> None:
    """Syncs the content of all files in a folder to disk, several at a time. Raises OSError if that fails."""
    with ThreadPoolExecutor(SYNCED_AT_ONCE, thread_name_prefix="sync") as pool:
        for _ in pool.map(sync, [each for each in folder.iterdir() if each.is_file()]):
            pass
