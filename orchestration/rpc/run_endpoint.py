"""Opens the RPC endpoint of a code server that contains the engines, for runs on the same host.

The endpoint listens on the loopback address. Ticks open the endpoint, and the end of the process closes it. Each destination's directory
has a file `run-endpoint.json` with the address and the token of the endpoint. Only the owner of this file can read it. `run_caller` reads
the file.

Each process has its own random token. If the process has ended and another program listens on its port, a run may send the token to this
program, but the token is no longer valid.

A closed endpoint loses no change: if a run finds the endpoint closed, the run ends, and ticks settle its batch by the run's tags and
status.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.cdc_engine.config.engine import LOOPBACK
from sluice.cdc_engine.errors import SluiceError
from sluice.orchestration.base.server_state import is_ending
from sluice.orchestration.rpc.access import RUN_REQUEST_BYTES_MAX
from sluice.orchestration.rpc.served_engine import ServedEngines
from sluice.orchestration.rpc.server import RpcServer

if TYPE_CHECKING:
    from sluice.orchestration.base.ports import EngineHost

_log = logging.getLogger(__name__)

RUN_ENDPOINT_FILE = "run-endpoint.json"


class RunEndpoint:
    """Listens for calls of runs to the engines of this process."""

    def __init__(self, engines: ServedEngines) -> None:
        self._engines = engines
        self._token = secrets.token_hex(16)
        self._server: RpcServer | None = None
        self._lock = threading.Lock()

    def open_for(self, directory: Path) -> None:
        """Lets runs of the destination with this directory find the endpoint. Each tick calls this method. Starts the server at the first
        call. Writes the file with the server's address and token if the file is missing or outdated.
        """
        self._engines.tick_came(directory.name)
        with self._lock:
            if self._server is None:
                self._server = RpcServer(
                    *(self._engines, self._token),
                    listen=f"{LOOPBACK[0]}:0",
                    request_bytes_max=RUN_REQUEST_BYTES_MAX,
                )
            address = f"{LOOPBACK[0]}:{self._server.port}"
            record = {"address": address, "token": self._token, "host": os.uname().nodename}
            _write(directory / RUN_ENDPOINT_FILE, record)

    def close(self) -> None:
        """Stops answering calls."""
        with self._lock:
            if self._server is not None:
                self._server.close(0.0)
                self._server = None


_run_endpoints: list[RunEndpoint] = []
_lock = threading.Lock()


def open_run_endpoint(host: Callable[[], EngineHost], directory: Path) -> None:
    """Opens the endpoint of this process for one more destination. If that fails, runs end after one batch, and the reason is logged."""
    with _lock:
        if not _run_endpoints:
            _run_endpoints.append(RunEndpoint(ServedEngines(host, is_ending)))
    try:
        _run_endpoints[0].open_for(directory)
    except (OSError, SluiceError) as error:
        _log.warning(
            "the RPC endpoint of %s cannot be opened: %s; each run of the destination merges only one batch",
            directory.name,
            error,
        )


def _write(path: Path, record: dict[str, str]) -> None:
    """Writes a record to a file in one step, if the content differs. Only the owner can read the file. The file is not synced: after a
    crash, the endpoint that it names no longer exists.
    """
    text = json.dumps(record)
    try:
        if path.read_text(encoding="utf-8") == text:
            return
    except (OSError, UnicodeDecodeError):
        pass  # A file that is missing or unreadable is written again.
    temporary = path.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    temporary.replace(path)
