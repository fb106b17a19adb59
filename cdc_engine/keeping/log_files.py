"""Limits the size of the log files of the processes that `sluice up` starts. Dagster's code server does this, because it always runs."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sluice.cdc_engine.keeping.in_use import InUse

FOLDERS = ("logs", "spark")  # The folders with logs in `data_dir`.
LOG_BYTES_MAX = 64 * 2**20
LOOK_SECONDS = 60.0


class LogFiles:
    """Keeps log files small. When a log file is larger than LOG_BYTES_MAX, copies the end of the file to a second file with the ending
    `.1`, and then empties the log file. The copy replaces an earlier `.1` file.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._due = clock, 0.0

    def look(self, in_use: InUse) -> None:
        """Checks the sizes of all log files, at most once a minute."""
        if self._clock() < self._due:
            return
        self._due = self._clock() + LOOK_SECONDS
        for log in (log for folder in FOLDERS for log in (in_use.config.data_dir / folder).glob("*.log")):
            # Ignores errors, for example of a full disk, because the next call tries again.
            with contextlib.suppress(OSError):
                if log.stat().st_size > LOG_BYTES_MAX:
                    _begin_again(log)


def _begin_again(log: Path) -> None:
    """Copies the end of a log to a second file, and then empties the log. The process that writes the log has opened the file for
    appending, so it continues at the beginning of the empty file. Lines that it writes between the two steps are lost. If the copy fails,
    removes the incomplete copy, so that it does not fill the disk.
    """
    copy = log.with_name(f"{log.name}.1.new")
    try:
        with log.open("rb") as whole, copy.open("wb") as end:
            # Copies only the end, because a log of an earlier version may be much larger than the limit.
            whole.seek(-LOG_BYTES_MAX, os.SEEK_END)
            shutil.copyfileobj(whole, end)
    except OSError:
        copy.unlink(missing_ok=True)
        raise
    copy.replace(log.with_name(f"{log.name}.1"))
    os.truncate(log, 0)
