"""Serves the engines of this process over gRPC: every method of `ports.EngineHandle`, for callers that know the token. See `caller`.

A request names a destination, a method and its arguments. Methods are looked up in a table, so that nothing else can be called.
"""

from __future__ import annotations

import concurrent.futures
import hmac
import json
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import grpc

from cdc_engine.errors import BatchNotFoundError, ConfigurationError, SluiceError
from orchestration.remote.access import LENGTHS_OF_HOST, server_credentials
from orchestration.remote.wire import (
    CALL,
    FORM,
    SERVICE,
    Record,
    batch_of,
    batch_to_json,
    error_to_json,
    state_to_json,
    to_bytes,
)

if TYPE_CHECKING:
    from cdc_engine.config import EngineConfig
    from cdc_engine.contracts import OutstandingBatch
    from orchestration.base.ports import EngineHandle, EngineHost

_log = logging.getLogger(__name__)

CALLS_MAX = 64  # concurrent calls
HAND_OUT_SECONDS_MAX = 20.0
STOP_SECONDS = 5.0  # for calls in progress when the host ends


def _batch(request: Record) -> OutstandingBatch:
    batch = batch_of(request["batch"])
    if batch is None:
        raise BatchNotFoundError("no batch was named")
    return batch


def _hand_out(engine: EngineHandle, request: Record) -> Record | None:
    return batch_to_json(engine.hand_out(min(float(request["timeout_seconds"]), HAND_OUT_SECONDS_MAX)))


def _stop_tables(engine: EngineHandle, request: Record) -> None:
    engine.stop_tables(_batch(request), {name: (why[0], why[1]) for name, why in request["reasons"].items()})


METHODS: dict[str, Callable[[EngineHandle, Record], Any]] = {
    "get_or_start": lambda _, __: None,
    "status": lambda engine, _: state_to_json(engine.status()),
    "outstanding": lambda engine, _: batch_to_json(engine.outstanding()),
    "hand_out": _hand_out,
    "lengthen": lambda engine, request: batch_to_json(engine.lengthen(_batch(request))),
    "ack": lambda engine, request: engine.ack(_batch(request)),
    "rollback": lambda engine, request: engine.rollback(_batch(request), damaged=bool(request["damaged"])),
    "stop_tables": _stop_tables,
    "tell_lake": lambda engine, request: engine.tell_lake(tuple(request["troubles"])),
    "tell_tick": lambda engine, request: engine.tell_tick(str(request.get("failed") or "")),
    "tell_run": lambda engine, request: engine.tell_run(_batch(request), str(request["state"])),
    "tell_failing": lambda engine, request: engine.tell_failing(str(request["reason"])),
    "tell_waiting": lambda engine, request: engine.tell_waiting(str(request["reason"])),
}


class HostServer:
    """A gRPC server that listens from its creation until `close`. `port`: the port of `engine.listen`, or the assigned one if that is 0.

    `conf`: returns the digest of the conf/ file that a destination's engine uses; callers compare it with their own.
    """

    def __init__(
        self,
        host: Callable[[], EngineHost],
        config: EngineConfig,
        token: str,
        *,
        listen: str = "",
        conf: Callable[[str], str] = lambda _: "",
    ) -> None:
        """Raises ConfigurationError if the port is not available, or a certificate cannot be read."""
        self._host, self._token = host, token

        def made_with(_: EngineHandle, request: Record) -> Record:
            return {"conf": conf(str(request["destination"]))}

        self._methods = {**METHODS, "get_or_start": made_with}
        pool = concurrent.futures.ThreadPoolExecutor(CALLS_MAX, thread_name_prefix="engine-host")
        self._server = grpc.server(pool, options=[("grpc.so_reuseport", 0), *LENGTHS_OF_HOST])
        handler = grpc.unary_unary_rpc_method_handler(
            self._answer, request_deserializer=json.loads, response_serializer=to_bytes
        )
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {CALL: handler}),))
        self.port = self._listen(listen or config.listens_at, server_credentials(config))
        self._server.start()

    def close(self) -> None:
        """Stops the server; calls in progress may finish within STOP_SECONDS."""
        self._server.stop(STOP_SECONDS).wait()

    def _listen(self, address: str, credentials: Any) -> int:
        try:
            if credentials is None:
                return int(self._server.add_insecure_port(address))
            return int(self._server.add_secure_port(address, credentials))
        except RuntimeError as error:  # gRPC raises it if the port is not available
            raise ConfigurationError(
                f"an engine host cannot listen at {address}: another program has the port, or the address is not of this host; "
                "stop that program or set engine.listen in conf/sluice.yaml"
            ) from error

    def _answer(self, request: Record, context: Any) -> Record:
        told = dict(context.invocation_metadata()).get("authorization", "")
        if not hmac.compare_digest(told.encode(), f"Bearer {self._token}".encode()):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is not that of this engine host")
        if request.get("form") != FORM or request.get("method") not in METHODS:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, f"this engine host answers form {FORM} of the questions")
        try:
            engine = self._host().get_or_start(str(request["destination"]))
            return {"value": self._methods[request["method"]](engine, request)}
        except SluiceError as error:
            return {"error": error_to_json(error)}
        except Exception as error:  # a defect: its traceback goes to this host's log, not to the caller
            _log.exception("%s of %s failed", request["method"], request.get("destination"))
            return {
                "error": {
                    "code": SluiceError.code,
                    "message": f"{type(error).__name__} in the engine host; see its log for the whole error",
                }
            }
