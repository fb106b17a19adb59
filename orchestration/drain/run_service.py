"""The RPC endpoint of the engines of this process. Runs use it to append new changes to their batch, or to take and ack batch after batch.

It is gRPC on the loopback address, with a token in `door.json` of each destination's directory, readable by its owner only. The ticks
open it, and the end of the process closes it. Requests and answers are JSON: batches by reference, errors by code, so a run needs nothing
but a connection to the engine. `caller` is the client.

Correctness does not depend on it. A run that finds it closed ends, and the ticks settle what it merged by the run's record.
"""

from __future__ import annotations

import concurrent.futures
import hmac
import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from cdc_engine.errors import BatchNotFoundError, CanalServiceError, EngineStartingError, LeaseLostError, SluiceError
from orchestration.base import failpoints
from orchestration.base.batch_reference import BatchReference

if TYPE_CHECKING:
    from cdc_engine.contracts import OutstandingBatch
    from orchestration.base.ports import EngineHandle, EngineHost

_log = logging.getLogger(__name__)

SERVICE, HAND_OUT, LENGTHEN, ACK = "sluice.Engine", "HandOut", "Lengthen", "Ack"
RUN_SERVICE_FILE = "door.json"
LOOPBACK = "127.0.0.1:0"
CALLS_MAX = 64  # concurrent calls; each attached run has one that waits for its next batch
HAND_OUT_SECONDS_MAX = 5.0
# Dagster starts a tick every 5 s. Without ticks, the sensor was switched off to stop merging, or nothing settles failed batches.
TICK_SILENCE_SECONDS_MAX = 30.0

Answer = dict[str, Any]


class RunService:
    """The endpoint of a process. `host`: its engines. `closing`: returns whether the process must end, so that runs are to leave."""

    def __init__(self, host: Callable[[], EngineHost], closing: Callable[[], bool]) -> None:
        self._host, self._closing = host, closing
        self._token = secrets.token_hex(16)
        self._server: Any = None
        self._address = ""
        self._ticked: dict[str, float] = {}
        self._lock = threading.Lock()

    def open_for(self, directory: Path) -> None:
        """Makes the endpoint available to runs of the destination with this directory. Each tick calls it; repeated calls only check
        `door.json`.
        """
        self._ticked[directory.name] = time.monotonic()
        with self._lock:
            if self._server is None:
                self._listen()
            _write_run_service_file(directory / RUN_SERVICE_FILE, {"address": self._address, "token": self._token})

    def close(self) -> None:
        """Stops answering calls."""
        with self._lock:
            if self._server is not None:
                self._server.stop(None)
                self._server = None

    def _listen(self) -> None:
        pool = concurrent.futures.ThreadPoolExecutor(CALLS_MAX, thread_name_prefix="door")
        server = grpc.server(pool, options=[("grpc.so_reuseport", 0)])
        acts = {HAND_OUT: self._hand_out, LENGTHEN: self._lengthen, ACK: self._ack}
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                self._answers(act), request_deserializer=json.loads, response_serializer=_to_bytes
            )
            for name, act in acts.items()
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        self._address = f"{LOOPBACK.partition(':')[0]}:{server.add_insecure_port(LOOPBACK)}"
        server.start()
        self._server = server

    def _answers(self, act: Callable[[EngineHandle, Answer], Answer]) -> Callable[[Answer, Any], Answer]:
        def answer(request: Answer, context: Any) -> Answer:
            told = dict(context.invocation_metadata()).get("authorization", "")
            if not hmac.compare_digest(told, f"Bearer {self._token}"):
                context.abort(
                    grpc.StatusCode.UNAUTHENTICATED,
                    f"the request's token is not the one in {RUN_SERVICE_FILE}: the engine was restarted, or another process calls",
                )
            try:
                engine = self._host().get_or_start(request["destination"])
            except (LeaseLostError, EngineStartingError) as error:
                return {"away": str(error)}
            except SluiceError as error:
                return _refusal(error)
            try:
                return act(engine, request)
            except SluiceError as error:
                return _refusal(error)

        return answer

    def _hand_out(self, engine: EngineHandle, request: Answer) -> Answer:
        if self._closing():
            return {"leave": "the engine's process is stopping"}
        silent = time.monotonic() - self._ticked.get(request["destination"], float("-inf"))
        if silent > TICK_SILENCE_SECONDS_MAX:
            return {
                "leave": (
                    "the sensor does not tick: it is switched off, its ticks fail, or Dagster's daemon does not run "
                    "(`sluice status`)"
                )
            }
        batch = engine.hand_out(min(float(request["timeout_seconds"]), HAND_OUT_SECONDS_MAX))
        return {"reference": None if batch is None else BatchReference.of(request["destination"], batch).to_config()}

    def _lengthen(self, engine: EngineHandle, request: Answer) -> Answer:
        reference, batch = _named(engine, request)
        try:
            longer = batch if self._closing() else engine.lengthen(batch)
        except CanalServiceError:
            raise  # refused before anything was written
        except SluiceError as error:
            # The ledger or the engine's host did not answer: the extension may have been written.
            return {"unanswered": f"{error.code}: {error}"}
        return {"reference": BatchReference.of(reference.destination, longer).to_config()}

    def _ack(self, engine: EngineHandle, request: Answer) -> Answer:
        reference, batch = _named(engine, request)
        failpoints.reach(failpoints.BEFORE_ACK)
        engine.ack(batch)
        failpoints.reach(failpoints.AFTER_ACK)
        _log.info("%s was merged by a run that drains: acked", reference)
        return {}


def _named(engine: EngineHandle, request: Answer) -> tuple[BatchReference, OutstandingBatch]:
    """Returns the batch that a request names. Raises BatchNotFoundError if it is no longer in flight."""
    reference, batch = BatchReference.from_config(request["reference"]), engine.outstanding()
    if batch is None or not reference.names(batch):
        raise BatchNotFoundError(f"{reference} is not outstanding any more")
    return reference, batch


_ends: list[Callable[[], bool]] = []  # the conditions under which this process ends, from its server
_run_services: list[RunService] = []
_lock = threading.Lock()


def closes_when(closing: Callable[[], bool]) -> None:
    """Makes the endpoint of this process send runs away once `closing` returns true."""
    _ends.append(closing)


def open_run_service(host: Callable[[], EngineHost], directory: Path) -> None:
    """Makes the one endpoint of this process serve the destination too. If it cannot be opened, runs end after one batch and log why."""
    with _lock:
        if not _run_services:
            _run_services.append(RunService(host, lambda: any(closing() for closing in _ends)))
    try:
        _run_services[0].open_for(directory)
    except (OSError, RuntimeError) as error:  # gRPC raises it if the port is not available
        _log.warning(
            "the RPC endpoint of %s cannot be opened: %s; each of its runs merges one batch", directory.name, error
        )


def _refusal(error: SluiceError) -> Answer:
    return {"error": {"code": error.code, "message": str(error)}}


def _to_bytes(answer: Answer) -> bytes:
    return json.dumps(answer).encode()


def _write_run_service_file(path: Path, record: dict[str, str]) -> None:
    """Writes the file atomically, readable by its owner only, if its content differs. It is not synced, because it is useless after a
    crash.
    """
    text = json.dumps(record)
    try:
        if path.read_text(encoding="utf-8") == text:
            return
    except (OSError, UnicodeDecodeError):
        pass  # written again
    beside = path.with_suffix(".tmp")
    beside.unlink(missing_ok=True)
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    beside.replace(path)
