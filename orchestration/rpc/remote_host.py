"""Implements `ports.EngineHost` and `ports.EngineHandle` by calls to engines in other processes, with the methods in the module `methods`.

The classes keep no state of an engine, because an engine host or the caller may restart at any time. Each `get_or_start` finds out which
of several hosts runs a destination.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sluice.cdc_engine.config.conf_files import file_of
from sluice.cdc_engine.errors import EngineStartingError, LeaseLostError, SluiceError
from sluice.orchestration.base.ports import EngineAwayError
from sluice.orchestration.rpc import methods
from sluice.orchestration.rpc.access import token_of
from sluice.orchestration.rpc.connection import Connection

if TYPE_CHECKING:
    from sluice.cdc_engine.config import SluiceConfig
    from sluice.cdc_engine.contracts import OutstandingBatch
    from sluice.orchestration.base.batch_reference import BatchReference
    from sluice.orchestration.base.ports import EngineSnapshot, Offer
    from sluice.orchestration.rpc.methods import Method

T = TypeVar("T")

# Each host follows a change of conf/ within this time. Until then, this host and the engine's host may use different versions, and no
# trouble is reported.
DIFFERS_SECONDS_MAX = 60.0
# The host that ran the destination at the last call is called first. If that host does not answer, each other host gets only this many
# seconds to answer, because the other host may be dead too.
OTHERS_SECONDS_MAX = 4.0


class RemoteEngine:
    """Calls an engine in another process. Implements `ports.EngineHandle`, and has the methods that runs call with a reference instead of a
    batch. The destination's `directory` has the same path on all hosts.
    """

    def __init__(self, connection: Connection, destination: str, directory: Path) -> None:
        self._connection, self._destination, self.directory = connection, destination, directory

    def status(self) -> EngineSnapshot:
        return self._call(methods.STATUS)

    def outstanding(self) -> OutstandingBatch | None:
        return self._call(methods.OUTSTANDING)

    def hand_out(self, timeout_seconds: float, *, appendable: bool = False) -> OutstandingBatch | None:
        return self._call(methods.HAND_OUT, timeout_seconds=timeout_seconds, appendable=appendable)

    def offer(self, timeout_seconds: float) -> Offer:
        return self._call(methods.OFFER, timeout_seconds=timeout_seconds)

    def take_by_reference(self, reference: BatchReference, *, append: bool) -> None:
        self._call(methods.TAKE_BY_REFERENCE, reference=reference, append=append)

    def ack_by_reference(self, reference: BatchReference) -> None:
        self._call(methods.ACK_BY_REFERENCE, reference=reference)

    def take(self, batch: OutstandingBatch, *, append: bool = True) -> OutstandingBatch:
        return self._call(methods.TAKE, batch=batch, append=append)

    def ack(self, batch: OutstandingBatch) -> None:
        self._call(methods.ACK, batch=batch)

    def rollback(self, batch: OutstandingBatch, *, damaged: bool = False) -> None:
        self._call(methods.ROLLBACK, batch=batch, damaged=damaged)

    def stop_tables(self, batch: OutstandingBatch, reasons: Mapping[str, tuple[str, str]]) -> None:
        self._call(methods.STOP_TABLES, batch=batch, reasons=reasons)

    def report_lake(self, troubles: tuple[str, ...]) -> None:
        self._call(methods.REPORT_LAKE, troubles=troubles)

    def report_tick(self, failed: str = "") -> None:
        self._call(methods.REPORT_TICK, failed=failed)

    def report_run(self, batch: OutstandingBatch, state: str) -> None:
        self._call(methods.REPORT_RUN, batch=batch, state=state)

    def report_failing(self, reason: str) -> None:
        self._call(methods.REPORT_FAILING, reason=reason)

    def report_waiting(self, reason: str) -> None:
        self._call(methods.REPORT_WAITING, reason=reason)

    def _call(self, method: Method[T], **arguments: Any) -> T:
        return self._connection.call(self._destination, method, arguments)


class RemoteHost:
    """Finds out which of several hosts runs a destination, and returns the engine there. Implements `ports.EngineHost`."""

    def __init__(self, config: SluiceConfig) -> None:
        self._config = config

        def token() -> str:
            return token_of(config.engine, config.data_dir, make=False)

        self._hosts = [Connection(address, config.engine, token) for address in config.engine.addresses]
        # For each destination, the host that ran it at the last call. The next call tries this host first.
        self._last: dict[str, Connection] = {}
        self._confs: dict[str, str] = {}  # For each destination, the digest of the conf/ file that its engine uses.
        self._differs_since: dict[str, float] = {}

    def get_or_start(self, destination: str) -> RemoteEngine:
        """Returns the engine from the host that runs the destination. The other hosts are on standby. If no host returns the engine, raises
        the error with the lowest `weight`: EngineStartingError, then another SluiceError, then LeaseLostError of a host on standby, then
        EngineAwayError of a host that does not answer.
        """
        errors: list[SluiceError] = []
        last = self._last.get(destination)
        for host in sorted(self._hosts, key=lambda each: each is not last):
            seconds_max = None if last in {host, None} else OTHERS_SECONDS_MAX
            try:
                conf = host.call(destination, methods.CONF_DIGEST, {}, seconds_max)
            except SluiceError as error:
                errors.append(error)
            else:
                self._last[destination], self._confs[destination] = host, conf
                return RemoteEngine(host, destination, self._config.destination_dir(destination))
        raise min(errors, key=weight)

    def conf_troubles(self, destination: str, digest: str, now: float | None = None) -> tuple[str, ...]:
        """Returns a sentence if the engine has used another version of the destination's file than this host for longer than
        DIFFERS_SECONDS_MAX. `digest` is that of this host's version.
        """
        now = time.monotonic() if now is None else now
        if self._confs.get(destination, "") in {"", digest}:
            self._differs_since.pop(destination, None)
            return ()
        if now - self._differs_since.setdefault(destination, now) < DIFFERS_SECONDS_MAX:
            return ()
        there = f"{file_of(destination)} in conf/ differs between this host and the engine host at {self._last[destination].address}"
        remedy = 'make both files equal; if they are equal already, press "Reload" of the code location in Dagster'
        return (f"{there}, so batches would not be merged as they were staged: {remedy}",)

    def close(self) -> None:
        for host in self._hosts:
            host.close()


def weight(error: SluiceError) -> int:
    """Returns the rank of an error. If several hosts raise errors, the one with the lowest rank is reported. The order is: an engine that
    is starting, any other error of a host that answers, a host on standby, a host that does not answer.
    """
    for at, kind in enumerate((EngineAwayError, LeaseLostError)):
        if isinstance(error, kind):
            return 3 - at
    return 0 if isinstance(error, EngineStartingError) else 1
