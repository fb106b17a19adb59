"""Wraps an engine for calls over RPC. Decides when a draining run must end, and limits how long a call may wait. `server` serves the
wrapped engines.

The engine's process is the code server or `sluice engine`. Both serve the same calls by the same rules.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sluice.cdc_engine.contracts import OutstandingBatch
from sluice.cdc_engine.errors import BatchNotFoundError
from sluice.orchestration.base import failpoints
from sluice.orchestration.base.batch_reference import BatchReference
from sluice.orchestration.base.ports import Offer

if TYPE_CHECKING:
    from sluice.orchestration.base.ports import EngineHandle, EngineHost

HAND_OUT_SECONDS_MAX = 20.0
# Draining runs must end after this time without a tick. Dagster starts a tick every 5 s. If no tick arrives, somebody may have switched the
# sensor off to stop merging. Also, without ticks nothing settles the batch of a run that fails.
TICK_SILENCE_SECONDS_MAX = 30.0


class ServedEngines:
    """The engines of a process. `host` returns the engine host. `closing` returns whether the process is ending; draining runs must then
    end. `conf` returns the digest of the conf/ file that a destination's engine uses. Callers compare this digest with their own.
    """

    def __init__(
        self, host: Callable[[], EngineHost], closing: Callable[[], bool], conf: Callable[[str], str] = lambda _: ""
    ) -> None:
        self._host, self.closing, self.conf = host, closing, conf
        self._ticked: dict[str, float] = {}

    def get_or_start(self, destination: str) -> ServedEngine:
        """Returns the engine of a destination, and starts it if necessary. Raises EngineStartingError if the engine is not ready after a
        short wait, LeaseLostError if another process runs the destination, and another SluiceError if the engine cannot start.
        """
        return ServedEngine(self, destination, self._host().get_or_start(destination))

    def tick_came(self, destination: str) -> None:
        self._ticked[destination] = time.monotonic()

    def why_leave(self, destination: str) -> str:
        """Returns why draining runs must end: this process is ending, or no tick has come for TICK_SILENCE_SECONDS_MAX. Otherwise returns
        "". If no tick has come yet, the time begins at the first call of this method for the destination, because ticks may have called
        another process until then.
        """
        if self.closing():
            return "the engine's process is stopping"
        now = time.monotonic()
        if now - self._ticked.setdefault(destination, now) > TICK_SILENCE_SECONDS_MAX:
            return (
                f"no tick of the sensor has arrived for {TICK_SILENCE_SECONDS_MAX:g} s: the sensor is switched off, its "
                "ticks fail, or Dagster's daemon does not run (see `sluice status`)"
            )
        return ""


class ServedEngine:
    """The engine of one destination, with all methods that the module `methods` defines for RPC. This class implements the methods that the
    engine itself does not have, and the methods that this class must limit or record. It passes all other calls to the engine unchanged.
    """

    def __init__(self, engines: ServedEngines, destination: str, engine: EngineHandle) -> None:
        self._engines, self._destination, self._engine = engines, destination, engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def conf_digest(self) -> str:
        return self._engines.conf(self._destination)

    def report_tick(self, failed: str = "") -> None:
        if not failed:
            self._engines.tick_came(self._destination)
        self._engine.report_tick(failed)

    def offer(self, timeout_seconds: float) -> Offer:
        """Returns the next batch for a draining run, with a fixed end, or why the run must end. If no batch is staged within
        `timeout_seconds`, the result has neither.
        """
        if leave := self._engines.why_leave(self._destination):
            return Offer(leave=leave)
        batch = self.hand_out(timeout_seconds)
        # If a tick requested this batch before, the batch's end is not fixed yet. A draining run needs a fixed end.
        if batch is not None and batch.appendable:
            batch = self._engine.take(batch, append=False)
        return Offer(reference=None if batch is None else BatchReference.of(self._destination, batch))

    def hand_out(self, timeout_seconds: float, *, appendable: bool = False) -> OutstandingBatch | None:
        return self._engine.hand_out(min(timeout_seconds, HAND_OUT_SECONDS_MAX), appendable=appendable)

    def take_by_reference(self, reference: BatchReference, *, append: bool) -> None:
        self._engine.take(self._in_flight(reference), append=append and not self._engines.closing())
        failpoints.reach(failpoints.AFTER_TAKE)

    def ack_by_reference(self, reference: BatchReference) -> None:
        batch = self._in_flight(reference)
        failpoints.reach(failpoints.BEFORE_ACK)
        self._engine.ack(batch)
        failpoints.reach(failpoints.AFTER_ACK)

    def _in_flight(self, reference: BatchReference) -> OutstandingBatch:
        """Returns the batch that a reference identifies. Raises BatchNotFoundError if the batch is no longer in flight."""
        batch = self._engine.outstanding()
        if batch is None or not reference.names(batch):
            raise BatchNotFoundError(f"{reference} is no longer in flight: it was acked or rolled back")
        return batch
