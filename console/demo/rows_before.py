"""Shows the progress of the initial snapshot in the demo, from the start of Sluice to the publication.

The display runs in a thread, because the snapshot begins while other processes of Sluice are still starting, and may end before the live
view appears.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console

from sluice.cdc_engine.errors import SluiceError
from sluice.cdc_engine.progress import ROWS, duration, figures
from sluice.cdc_engine.snapshot.record import SnapshotRecord, progress
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.states import SnapshotState
from sluice.console.acts.snapshot import described
from sluice.console.lake.progress_bars import ProgressBars

LOOK_SECONDS = 0.25
# If the snapshot takes longer than this many seconds, the live view replaces the snapshot's progress bar, so that the user sees the state
# of the engine.
WAIT_SECONDS_MAX = 600.0
SAY_SECONDS = 5.0  # The interval between two lines of progress when the output is not a terminal.


class RowsBefore:
    """Shows the progress of the snapshot of the table `name` ("database.table"), and prints the result at the end. If the snapshot was
    published, the result ends with `where`, a sentence that tells the user how to look at the table. Shows nothing if an earlier start of
    the demo has already published the snapshot.
    """

    def __init__(self, records: SnapshotRecords, name: str, screen: Console, where: str) -> None:
        self._records, self._name, self._screen, self._where = records, name, screen, where
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="rows before", daemon=True)

    def __enter__(self) -> RowsBefore:
        if not self.published:
            self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def published(self) -> bool:
        record = self._get()
        return record is not None and not record.is_open

    def wait(self, meanwhile: Callable[[], None]) -> None:
        """Waits until the snapshot is published or canceled or has failed, for at most WAIT_SECONDS_MAX, and then ends the display. Calls
        `meanwhile` about once per second during the wait.
        """
        end = time.monotonic() + WAIT_SECONDS_MAX
        while self._thread.is_alive() and time.monotonic() < end:
            meanwhile()
            self._thread.join(1.0)
        self.__exit__()

    def _watch(self) -> None:
        with ProgressBars(self._screen, ROWS) if self._screen.is_terminal else contextlib.nullcontext() as bars:

            def show(record: SnapshotRecord) -> None:
                if bars is not None:
                    bars.show(record.name, progress(record, time.time()), described(record))

            record = self._follow(show if bars else self._lines())
        if record is not None:
            self._say(_end(record, self._where))

    def _follow(self, show: Callable[[SnapshotRecord], None]) -> SnapshotRecord | None:
        """Shows the progress until the snapshot is published, canceled or failed, and returns its record. Returns None if another thread
        ends the display earlier.
        """
        while not self._ended.wait(LOOK_SECONDS):
            record = self._get()
            if record is not None:
                show(record)
                if not record.is_open or record.state == SnapshotState.FAILED:
                    return record
        return None

    def _lines(self) -> Callable[[SnapshotRecord], None]:
        said = 0.0

        def line(record: SnapshotRecord) -> None:
            nonlocal said
            if record.is_open and record.reading_at and time.monotonic() - said >= SAY_SECONDS:
                said = time.monotonic()
                self._say(f"  {record.name} is {record.state}: {figures(progress(record, time.time()), ROWS)}")

        return line

    def _get(self) -> SnapshotRecord | None:
        with contextlib.suppress(SluiceError):
            return self._records.get(self._name)
        return None

    def _say(self, sentence: str) -> None:
        self._screen.print(sentence, highlight=False, markup=False, soft_wrap=True)


def _end(record: SnapshotRecord, where: str) -> str:
    if record.state != SnapshotState.PUBLISHED:
        return f"{record.name} is {record.state}: {record.reason}"
    read, then = record.read_at - record.reading_at, duration(record.published_at - record.read_at)
    rate = f"{record.rows / max(read, 1e-3):,.0f} rows/s"
    return (
        f"{record.name}: the {record.rows:,} rows of its initial snapshot were read in {duration(read)} while the stream "
        f"continued ({rate}), and published in one commit {then} later. From now on, the stream keeps the table up to date. {where}"
    )
