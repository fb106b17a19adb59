"""Files that are replaced whole: after a crash there is the old one or the new one, never half of one. Used by whoever keeps a file."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from cdc_engine.errors import MetaError


def replace_file(path: Path, content: str | bytes) -> None:
    """Is on disk when it returns: written beside (`.tmp`), synced, renamed, the folder synced, which is made where it is missing.

    Raises OSError; the file is then as it was.
    """
    beside = path.with_suffix(".tmp")
    try:
        make_folder(path.parent)
        with beside.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        sync(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


def keep_file(path: Path, content: str | bytes) -> None:
    """As `replace_file`. Raises MetaError with what to do."""
    try:
        replace_file(path, content)
    except OSError as error:
        raise MetaError(
            f"{path} could not be written ({error.strerror}): free space or give permission there"
        ) from error


def make_folder(path: Path) -> None:
    """The folder is there, also after a crash: each that had to be made is known to the one that holds it. Raises OSError."""
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync(path.parent)


def rename(path: Path, renamed: Path) -> None:
    """Under its new name, in the same folder, also after a crash; its content is the caller's to sync. Raises OSError."""
    path.rename(renamed)
    sync(renamed.parent)


def sync(path: Path) -> None:
    """What a file holds, or the names in a folder, are on disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
