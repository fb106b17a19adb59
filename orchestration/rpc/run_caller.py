"""Sends a run's requests to its engine: implements `ports.RunEngine`. See `run_endpoint`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sluice.cdc_engine.config import EngineConfig
from sluice.orchestration.base.batch_reference import BatchReference
from sluice.orchestration.base.ports import Offer, RunEngineAwayError
from sluice.orchestration.rpc.connection import Connection, EngineAwayError
from sluice.orchestration.rpc.run_endpoint import ACK, HAND_OUT, RUN_ENDPOINT_FILE, TAKE


class RunCaller:
    """Calls the engine for one run, from one thread. The endpoint's address may change, because a restarted engine's process opens another
    one.
    """

    def __init__(self, directory: Path, destination: str) -> None:
        self._path, self._destination = directory / RUN_ENDPOINT_FILE, destination
        self._connection: Connection | None = None
        self._token = ""

    def hand_out(self, timeout_seconds: float) -> Offer:
        answer = self._ask(HAND_OUT, timeout_seconds, timeout_seconds=timeout_seconds)
        reference = answer["reference"]
        return Offer(reference=BatchReference.from_config(reference) if reference else None, leave=answer["leave"])

    def take(self, reference: BatchReference, *, append: bool) -> None:
        self._ask(TAKE, reference=reference.to_config(), append=append)

    def ack(self, reference: BatchReference) -> None:
        self._ask(ACK, reference=reference.to_config())

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self, method: str, wait_seconds: float = 0.0, **arguments: Any) -> Any:
        try:
            return self._connected().ask(self._destination, method, wait_seconds, arguments)
        except EngineAwayError as error:
            self.close()
            raise RunEngineAwayError(f"{self._destination}: {error}") from error

    def _connected(self) -> Connection:
        """Returns a connection to the endpoint that the file currently names. Raises RunEngineAwayError."""
        address, self._token = self._endpoint()
        if self._connection is None or self._connection.address != address:
            self.close()
            self._connection = Connection(address, EngineConfig(), lambda: self._token)
        return self._connection

    def _endpoint(self) -> tuple[str, str]:
        try:
            record = json.loads(self._path.read_text(encoding="utf-8"))
            return str(record["address"]), str(record["token"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunEngineAwayError(
                f"the engine of {self._destination} has no RPC endpoint on this host ({self._path}: {error})"
            ) from error
