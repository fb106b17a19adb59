"""Sends a run's requests to the engine of its destination. `RunCaller` implements `ports.RunEngine`.

With `engine: {kind: embedded}`, the engine is in the code server, and a run on the same host calls the code server's RPC endpoint
(`run_endpoint`). With `engine: {kind: remote}`, the run calls the engine hosts, as ticks do.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.cdc_engine.config import EngineConfig
from sluice.orchestration.base.ports import EngineAwayError, Offer
from sluice.orchestration.rpc.connection import Connection
from sluice.orchestration.rpc.remote_host import RemoteEngine
from sluice.orchestration.rpc.run_endpoint import RUN_ENDPOINT_FILE

if TYPE_CHECKING:
    from sluice.orchestration.base.batch_reference import BatchReference
    from sluice.orchestration.rpc.remote_host import RemoteHost


class RunCaller:
    """Calls the engine for one run, from one thread. The function `engine` returns the engine, and is called for each request, because the
    engine may have moved to another process since the last request.
    """

    def __init__(self, engine: Callable[[], RemoteEngine]) -> None:
        self._engine = engine

    def hand_out(self, timeout_seconds: float) -> Offer:
        return self._engine().offer(timeout_seconds)

    def take(self, reference: BatchReference, *, append: bool) -> None:
        self._engine().take_by_reference(reference, append=append)

    def ack(self, reference: BatchReference) -> None:
        self._engine().ack_by_reference(reference)


def caller_of_hosts(hosts: RemoteHost, destination: str) -> RunCaller:
    """Returns the RunCaller for a destination whose engine may be on any of several hosts."""
    return RunCaller(lambda: hosts.get_or_start(destination))


def caller_of_code_server(directory: Path, destination: str) -> RunCaller:
    """Returns the RunCaller for an engine in the code server of this host. `directory` is the destination's directory."""
    endpoint = _Endpoint(directory, destination)
    return RunCaller(endpoint.engine)


class _Endpoint:
    """Connects to the code server's RPC endpoint. The address and token are in the file `run-endpoint.json`. Each call reads the file,
    because a restart of the code server changes the file.
    """

    def __init__(self, directory: Path, destination: str) -> None:
        self._directory, self._destination = directory, destination
        self._connection: Connection | None = None
        self._token = ""

    def engine(self) -> RemoteEngine:
        """Returns the engine at the current endpoint. Raises EngineAwayError if this host has no endpoint."""
        address, self._token = self._read()
        if self._connection is None or self._connection.address != address:
            if self._connection is not None:
                self._connection.close()
            self._connection = Connection(address, EngineConfig(), lambda: self._token)
        return RemoteEngine(self._connection, self._destination, self._directory)

    def _read(self) -> tuple[str, str]:
        path = self._directory / RUN_ENDPOINT_FILE
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            address, token, host = str(record["address"]), str(record["token"]), str(record["host"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._away(f"this host has no RPC endpoint of the code server ({path}: {error})") from error
        if host != os.uname().nodename:
            raise self._away(f"the code server's RPC endpoint serves only runs on {host}")
        return address, token

    def _away(self, why: str) -> EngineAwayError:
        return EngineAwayError(
            f"the engine of {self._destination} is in Dagster's code server, and {why}; for runs on other "
            "hosts set engine: {kind: remote} with TLS in conf/sluice.yaml (docs/deployment.md); on the "
            "code server's host, start the code server with `sluice up`"
        )
