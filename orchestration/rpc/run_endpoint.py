"""Serves the RPC endpoint of a code server. A run takes its batch through it, and a run that drains gets and acks batch after batch.

It listens on the loopback address, with a token in `run-endpoint.json` of each destination's directory, readable by its owner only. The
ticks open it, and the end of the process closes it. Batches are passed by reference, so a run needs nothing but a connection.
`run_caller` is the client. The token ends with the process: whoever gets the port afterwards learns nothing from a run that calls it.

Correctness does not depend on it. A run that finds it closed ends, and the ticks settle its batch by the run's record."""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.cdc_engine.errors import (
    BatchNotFoundError,
    EngineStartingError,
    LeaseLostError,
    SluiceError,
)
from sluice.orchestration.base import failpoints
from sluice.orchestration.base.batch_reference import BatchReference
from sluice.orchestration.base.ports import RunEngineAwayError
from sluice.orchestration.rpc.access import RUN_REQUEST_BYTES_MAX
from sluice.orchestration.rpc.server import RpcServer

if TYPE_CHECKING:
    from sluice.cdc_engine.contracts import OutstandingBatch
    from sluice.orchestration.base.ports import EngineHandle, EngineHost
    from sluice.orchestration.rpc.wire import Record

_log = logging.getLogger(__name__)

HAND_OUT, TAKE, ACK = "run_hand_out", "run_take", "run_ack"
RUN_ENDPOINT_FILE = "run-endpoint.json"
LOOPBACK = "127.0.0.1"
HAND_OUT_SECONDS_MAX = 5.0
# Dagster starts a tick every 5 s. If there are none, the sensor was switched off to stop merging, or nothing settles
# failed batches.
TICK_SILENCE_SECONDS_MAX = 30.0


class RunEndpoint:
    """The endpoint of a process. `host`: its engines. `closing`: returns whether the process must end, so that runs must leave."""

    def __init__(self, host: Callable[[], EngineHost], closing: Callable[[], bool]) -> None:
        self._host, self._closing = host, closing
        self._token = secrets.token_hex(16)
        self._server: RpcServer | None = None
        self._ticked: dict[str, float] = {}
        self._lock = threading.Lock()

    def open_for(self, directory: Path) -> None:
        """Makes the endpoint available to runs of the destination with this directory. Each tick calls it; a repeated call only checks the
        file.
        """
        self._ticked[directory.name] = time.monotonic()
        with self._lock:
            if self._server is None:
                methods = {HAND_OUT: self._hand_out, TAKE: self._take, ACK: self._ack}
                self._server = RpcServer(
                    *(self._engine_of, methods, self._token),
                    listen=f"{LOOPBACK}:0",
                    request_bytes_max=RUN_REQUEST_BYTES_MAX,
                )
            address = f"{LOOPBACK}:{self._server.port}"
            _write(directory / RUN_ENDPOINT_FILE, {"address": address, "token": self._token})

    def close(self) -> None:
        """Stops answering calls."""
        with self._lock:
            if self._server is not None:
                self._server.close(0.0)
                self._server = None

    def _engine_of(self, destination: str) -> EngineHandle:
        try:
            return self._host().get_or_start(destination)
        except (LeaseLostError, EngineStartingError) as error:
            raise RunEngineAwayError(str(error)) from error

    def _hand_out(self, engine: EngineHandle, request: Record) -> Record:
        destination = str(request["destination"])
        if leave := self._why_leave(destination):
            return {"reference": None, "leave": leave}
        batch = engine.hand_out(min(float(request["timeout_seconds"]), HAND_OUT_SECONDS_MAX))
        if batch is not None and batch.appendable:  # A tick has requested it.
            batch = engine.take(batch, append=False)
        reference = None if batch is None else BatchReference.of(destination, batch).to_config()
        return {"reference": reference, "leave": ""}

    def _why_leave(self, destination: str) -> str:
        """Returns why runs must end; an empty text if they need not."""
        if self._closing():
            return "the engine's process is stopping"
        if time.monotonic() - self._ticked.get(destination, float("-inf")) > TICK_SILENCE_SECONDS_MAX:
            return (
                "the sensor does not tick: it is switched off, its ticks fail, or Dagster's daemon does not run "
                "(`sluice status`)"
            )
        return ""

    def _take(self, engine: EngineHandle, request: Record) -> None:
        _, batch = _named(engine, request)
        engine.take(batch, append=bool(request["append"]) and not self._closing())
        failpoints.reach(failpoints.AFTER_TAKE)

    def _ack(self, engine: EngineHandle, request: Record) -> None:
        reference, batch = _named(engine, request)
        failpoints.reach(failpoints.BEFORE_ACK)
        engine.ack(batch)
        failpoints.reach(failpoints.AFTER_ACK)
        _log.info("%s was merged by a run that drains: acked", reference)


def _named(engine: EngineHandle, request: Record) -> tuple[BatchReference, OutstandingBatch]:
    """Returns the batch that a request names. Raises BatchNotFoundError if it is no longer in flight."""
    reference, batch = BatchReference.from_config(request["reference"]), engine.outstanding()
    if batch is None or not reference.names(batch):
        raise BatchNotFoundError(f"{reference} is not outstanding any more")
    return reference, batch


_ends: list[Callable[[], bool]] = []  # The server of this process adds the conditions under which the process ends.
_run_endpoints: list[RunEndpoint] = []
_lock = threading.Lock()


def closes_when(closing: Callable[[], bool]) -> None:
    """Makes the endpoint of this process tell runs to leave once `closing` returns true."""
    _ends.append(closing)


def open_run_endpoint(host: Callable[[], EngineHost], directory: Path) -> None:
    """Makes the only endpoint of this process serve the destination too. If it cannot be opened, runs end after one batch and log why."""
    with _lock:
        if not _run_endpoints:
            _run_endpoints.append(RunEndpoint(host, lambda: any(closing() for closing in _ends)))
    try:
        _run_endpoints[0].open_for(directory)
    except (OSError, SluiceError) as error:
        _log.warning(
            "the RPC endpoint of %s cannot be opened: %s; each of its runs merges one batch", directory.name, error
        )


def _write(path: Path, record: dict[str, str]) -> None:
    """Writes the file atomically, readable by its owner only, if its content differs. The file is not synced, because it is useless after a
    crash.
    """
    text = json.dumps(record)
    try:
        if path.read_text(encoding="utf-8") == text:
            return
    except (OSError, UnicodeDecodeError):
        pass  # written again
    temporary = path.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    temporary.replace(path)
