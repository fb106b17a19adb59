"""Simulates the RPC call by which a run takes its batch from the engine."""

from __future__ import annotations

from typing import Protocol

from benchmarks.histories.engine_host import EngineHost
from benchmarks.histories.faults import Actor, Crash
from sluice.cdc_engine.errors import BatchNotFoundError
from sluice.orchestration.base.batch_reference import BatchReference
from sluice.orchestration.base.ports import EngineAwayError, Offer


class EngineProcess(Protocol):
    """The parts of `world.Installation` that a run's calls use. `die` ends the engine's process."""

    host: EngineHost

    def die(self) -> None: ...


class PlayedRunEngine:
    """Implements `ports.RunEngine` for runs of one batch, by calls to production's engine. The engine's process may die during a call."""

    def __init__(self, line: EngineProcess) -> None:
        self._line = line

    def hand_out(self, timeout_seconds: float) -> Offer:
        raise NotImplementedError  # Only draining runs call it.

    def ack(self, reference: BatchReference) -> None:
        raise NotImplementedError

    def take(self, reference: BatchReference, *, append: bool) -> None:
        engine = self._line.host.engine
        if engine is None or not engine.holds_lease:
            raise EngineAwayError("no engine answers")
        try:
            with Actor.nobody():  # A stall or a crash in this block affects the engine's process, not the run's.
                batch = engine.outstanding()
                if batch is None or not reference.names(batch):
                    raise BatchNotFoundError("it is no longer outstanding")
                engine.take(batch, append=append)
        except Crash:
            self._line.die()
            raise EngineAwayError("the engine died") from None
