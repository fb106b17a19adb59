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
        path.parent.mkdir(parents=True, exist_ok=True)
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


def sync(path: Path) -> None:
    """What a file holds, or the names in a folder, are on disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
