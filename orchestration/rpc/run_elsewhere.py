"""Implements `ports.RunEngine` for a run on a host without the engine's files: sends its requests to the engine hosts.

It makes the calls that ticks make, with their token and over TLS (`remote_host`), so a run needs conf/ and no file of another host.
A run can take its batch. It cannot drain: its lock, by which ticks know that a run is attached, is of its own host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.cdc_engine.errors import BatchNotFoundError, EngineStartingError, LeaseLostError
from sluice.orchestration.base.batch_reference import BatchReference
from sluice.orchestration.base.ports import Offer, RunEngineAwayError
from sluice.orchestration.rpc.connection import EngineAwayError

if TYPE_CHECKING:
    from sluice.orchestration.rpc.remote_host import RemoteHost


class RunElsewhere:
    """Calls the engine hosts for one run, from one thread."""

    def __init__(self, hosts: RemoteHost, destination: str) -> None:
        self._hosts, self._destination = hosts, destination

    def hand_out(self, timeout_seconds: float) -> Offer:  # noqa: ARG002  of the contract
        raise RunEngineAwayError(f"a run of {self._destination} on another host than the code server merges one batch")

    def take(self, reference: BatchReference, *, append: bool) -> None:
        try:
            engine = self._hosts.get_or_start(self._destination)
            batch = engine.outstanding()
            if batch is None or not reference.names(batch):
                raise BatchNotFoundError(f"{reference} is not outstanding any more")
            engine.take(batch, append=append)
        except (EngineAwayError, EngineStartingError, LeaseLostError) as error:
            raise RunEngineAwayError(f"{self._destination}: {error}") from error

    def ack(self, reference: BatchReference) -> None:  # noqa: ARG002  of the contract
        raise RunEngineAwayError(f"the ticks settle what a run of {self._destination} on another host merges")
