"""Stores when the sensor last called the engine, and which state of the batch's run the sensor reported. `engine` uses these values for its
status.
"""

from __future__ import annotations

import time

from sluice.cdc_engine.contracts import OutstandingBatch
from sluice.cdc_engine.position import Position


class Pulse:
    """Stores what the sensor's ticks reported, with times of `time.monotonic`. Thread-safe: each method replaces an attribute in one
    assignment, so no thread reads a half-changed value.
    """

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._ticked: float | None = None
        # Why and when the newest tick failed, or None if the newest tick succeeded.
        self._tick_failed: tuple[str, float] | None = None
        self._acked: float | None = None
        # The number of the delivery in flight, and the time since which it is in flight.
        self._out: tuple[int, float] = (0, 0.0)
        self._run = (0, "")  # The number of a delivery, and the last known state of its run.
        # The cursor, and the time since which the cursor has not moved although changes wait.
        self._stood: tuple[Position | None, float] = (None, self._started)
        self.failing = ""  # Why runs fail to merge the batch in flight, or empty.

    def ticked(self, failed: str = "") -> None:
        """Records a tick of the sensor. `failed` is the reason if the tick failed, and otherwise empty. A failed tick settles no batch, so
        the method `tick_seconds` returns the time since the last successful tick.
        """
        if failed:
            self._tick_failed = (failed, time.monotonic())
        else:
            self._ticked, self._tick_failed = time.monotonic(), None

    def tick_failed(self) -> tuple[str, float]:
        """Returns why the newest tick failed, and how many seconds ago. The reason is empty if the newest tick succeeded."""
        failed = self._tick_failed
        return (failed[0], time.monotonic() - failed[1]) if failed is not None else ("", 0.0)

    def saw_run(self, delivery: int, state: str) -> None:
        """Records the state that Dagster reports for the run of a delivery."""
        self._run = (delivery, state)

    def acked(self) -> None:
        """Records that a batch was acked."""
        self._acked, self.failing = time.monotonic(), ""

    @property
    def ever_ticked(self) -> bool:
        return self._ticked is not None

    def tick_seconds(self) -> float:
        """Returns the seconds since the last successful tick, or since the engine's start if there was none."""
        return time.monotonic() - (self._started if self._ticked is None else self._ticked)

    def out_seconds(self, batch: OutstandingBatch | None) -> float:
        """Returns for how many seconds a batch has been in flight under its delivery number, or 0 if `batch` is None. The engine must call
        this once per second, because the call notices when a new delivery begins.
        """
        now = time.monotonic()
        delivery = batch.delivery if batch is not None else 0
        if self._out[0] != delivery:
            self._out = (delivery, now)
        return now - self._out[1] if delivery else 0.0

    def unmoved_seconds(self, cursor: Position | None, *, waits: bool) -> float:
        """Returns for how many seconds the cursor has not moved while changes waited for an ack. `waits` says whether changes wait now; if
        not, returns 0. The engine must call this once per second, because the call notices when the cursor moves.
        """
        now = time.monotonic()
        if not waits or self._stood[0] != cursor:
            self._stood = (cursor, now)
        return now - self._stood[1]

    def run_of(self, batch: OutstandingBatch | None) -> str:
        """Returns the last known state of the batch's run, or an empty text."""
        delivery, state = self._run
        return state if batch is not None and delivery == batch.delivery else ""

    def ticked_at_us(self) -> int:
        """Returns the time of the last successful tick in µs since 1970, or 0 if there was none."""
        return _wall_us(self._ticked)

    def acked_at_us(self) -> int:
        return _wall_us(self._acked)


def _wall_us(moment: float | None) -> int:
    return 0 if moment is None else int((time.time() - (time.monotonic() - moment)) * 1e6)
