"""When the engine was last asked, and what became of the batch that is out, as the sensor told. Kept by `engine`, read for its status."""

from __future__ import annotations

import time

from cdc_engine.contracts import OutstandingBatch
from cdc_engine.position import Position


class Pulse:
    """Told by the sensor's ticks. Times are of a clock that never goes back. Any thread may call; each call is one assignment."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._ticked: float | None = None
        self._acked: float | None = None
        self._out: tuple[int, float] = (0, 0.0)  # delivery of the batch that is out, since when it is
        self._run = (0, "")  # its delivery, the state in which its run was last seen
        # the cursor, and since when it stands there although changes wait
        self._stood: tuple[Position | None, float] = (None, self._started)
        self.failing = ""  # what keeps runs from merging the batch that is out

    def ticked(self) -> None:
        """The sensor has come by."""
        self._ticked = time.monotonic()

    def saw_run(self, delivery: int, state: str) -> None:
        """Dagster's state of the run of a batch."""
        self._run = (delivery, state)

    def acked(self) -> None:
        """A run's batch was acked."""
        self._acked, self.failing = time.monotonic(), ""

    @property
    def ever_ticked(self) -> bool:
        return self._ticked is not None

    def tick_seconds(self) -> float:
        """Since the last tick; since the start where there was none."""
        return time.monotonic() - (self._started if self._ticked is None else self._ticked)

    def out_seconds(self, batch: OutstandingBatch | None) -> float:
        """For how long a batch has been seen to be out, under one delivery; 0 for none. Asked once a second."""
        now = time.monotonic()
        delivery = batch.delivery if batch is not None else 0
        if self._out[0] != delivery:
            self._out = (delivery, now)
        return now - self._out[1] if delivery else 0.0

    def unmoved_seconds(self, cursor: Position | None, *, waits: bool) -> float:
        """For how long the cursor has been seen where it is while something waited to be acked. Asked once a second."""
        now = time.monotonic()
        if not waits or self._stood[0] != cursor:
            self._stood = (cursor, now)
        return now - self._stood[1]

    def run_of(self, batch: OutstandingBatch | None) -> str:
        """The state in which the batch's run was last seen; empty when none was."""
        delivery, state = self._run
        return state if batch is not None and delivery == batch.delivery else ""

    def ticked_at_us(self) -> int:
        """Of the wall clock; 0 when there was no tick."""
        return _wall_us(self._ticked)

    def acked_at_us(self) -> int:
        return _wall_us(self._acked)


def _wall_us(moment: float | None) -> int:
    return 0 if moment is None else int((time.time() - (time.monotonic() - moment)) * 1e6)
