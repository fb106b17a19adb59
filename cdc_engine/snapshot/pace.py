"""Limits how fast a snapshot reads: rows per second, and only while the source is not busy. One `ReadPace` for all chunks of a run.

`due_seconds` decides, `ReadPace` waits. An exception of `threads_running` or `wait` ends the chunk that is being read; this is how a
snapshot is paused.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

BUSY_SECONDS_MIN, BUSY_SECONDS_MAX = 0.25, 5.0  # The wait until the next query of the source; it doubles each time.
QUERY_SECONDS_MIN = 1.0  # Within a chunk the source is queried at most this often.
BURST_SECONDS = 1.0  # After a delay, reading exceeds the rate until it has caught up at most this much.


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaceLimits:
    """The limits of a snapshot's speed. `rows_per_second`: the most rows read per second; 0 for unlimited. `threads_running_max`: the
    source's Threads_running above which the snapshot waits; 0 for any number.
    """

    rows_per_second: float = 0
    threads_running_max: int = 0


def due_seconds(limits: PaceLimits, due: float, now: float, rows: int) -> float:
    """Returns the time before which the rows that were just read must not be complete. `due`: the same time for the rows before them."""
    if limits.rows_per_second <= 0:
        return now
    return max(due, now - BURST_SECONDS) + rows / limits.rows_per_second


def is_busy(limits: PaceLimits, threads_running: int) -> bool:
    """Returns whether the source is too busy for a snapshot."""
    return 0 < limits.threads_running_max < threads_running


class ReadPace:
    """Waits as the limits require. `threads_running`: queries the source over a connection of its own."""

    def __init__(
        self,
        limits: PaceLimits,
        threads_running: Callable[[], int] = lambda: 0,
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self.limits = limits
        self._threads_running, self._clock, self._wait = threads_running, clock, wait
        self._due = self._queried_at = clock()

    def before_chunk(self) -> None:
        """Waits while the source is busy."""
        seconds = BUSY_SECONDS_MIN
        while self.limits.threads_running_max and is_busy(self.limits, self._threads_running()):
            self._wait(seconds)
            seconds = min(2 * seconds, BUSY_SECONDS_MAX)
        self._queried_at = self._clock()

    def after_rows(self, rows: int) -> None:
        """Waits until this many more rows are due, and while the source is busy."""
        now = self._clock()
        self._due = due_seconds(self.limits, self._due, now, rows)
        if self._due > now:
            self._wait(self._due - now)
        if self._clock() - self._queried_at >= QUERY_SECONDS_MIN:
            self.before_chunk()
