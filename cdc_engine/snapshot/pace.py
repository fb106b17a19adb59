"""Limits how fast a snapshot reads: limits the rows per second, and waits while the source is busy. One `ReadPace` serves all chunks of a
run.

`due_seconds` computes the time until which to wait, and `ReadPace` waits. If its functions `threads_running` or `wait` raise an exception,
the reading of the chunk ends.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

# The shortest and the longest wait before a snapshot queries a busy source's Threads_running again. The wait doubles each time.
BUSY_SECONDS_MIN, BUSY_SECONDS_MAX = 0.25, 5.0
QUERY_SECONDS_MIN = 1.0  # Within a chunk, Threads_running is queried at most once in this time.
# If reading was slower than the rate, for example because the source was busy, reading may exceed the rate afterwards, to make up for at
# most this many seconds of delay.
BURST_SECONDS = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaceLimits:
    """The limits of a snapshot's speed. `rows_per_second` is the maximum of rows per second; 0 means no limit. The snapshot waits while the
    source's Threads_running is above `threads_running_max`; 0 means that it never waits.
    """

    rows_per_second: float = 0
    threads_running_max: int = 0


def due_seconds(limits: PaceLimits, due: float, now: float, rows: int) -> float:
    """Returns the time until which the reading must wait after `rows` more rows, so that it does not exceed the rate. `due` is the time
    that the previous call returned, and `now` the current time. All times are seconds of one monotonic clock.
    """
    if limits.rows_per_second <= 0:
        return now
    return max(due, now - BURST_SECONDS) + rows / limits.rows_per_second


def is_busy(limits: PaceLimits, threads_running: int) -> bool:
    """Returns whether the source is too busy for a snapshot."""
    return 0 < limits.threads_running_max < threads_running


class ReadPace:
    """Delays the reading of a snapshot as the limits require. `threads_running` queries the source over a separate connection."""

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
        """Waits after `rows` rows until the rate allows the next rows, and while the source is busy."""
        now = self._clock()
        self._due = due_seconds(self.limits, self._due, now, rows)
        if self._due > now:
            self._wait(self._due - now)
        if self._clock() - self._queried_at >= QUERY_SECONDS_MIN:
            self.before_chunk()
