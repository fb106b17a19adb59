"""Serves the engines of this process over gRPC to callers that have the token. `connection` is the client.

A request names a destination, a method and its arguments. Only methods in the table of `methods` can be called.
"""

from __future__ import annotations

import concurrent.futures
import hmac
import json
import logging
from typing import TYPE_CHECKING, Any

import grpc

from sluice.cdc_engine.errors import ConfigurationError, SluiceError
from sluice.orchestration.rpc.access import REQUEST_BYTES_MAX
from sluice.orchestration.rpc.methods import METHODS
from sluice.orchestration.rpc.wire import CALL, FORM, SERVICE, Record, error_to_json, to_bytes

if TYPE_CHECKING:
    from sluice.orchestration.rpc.served_engine import ServedEngines

_log = logging.getLogger(__name__)

# At most this many calls are served at once; further calls wait. Each draining run keeps one call open while it waits for its next batch.
CALLS_MAX = 64
STOP_SECONDS = 5.0  # When the server closes, calls in progress may take this long, and are then aborted.


class RpcServer:
    """Serves calls from its creation until `close`.

    - `port` is the port of `listen`, or the assigned port if `listen` names port 0.
    - `credentials` come from `access.server_credentials`. If they are None, the server has no TLS.
    - `request_bytes_max` limits the size of a request, because the server reads a request before it checks the token.
    """

    def __init__(
        self,
        engines: ServedEngines,
        token: str,
        *,
        listen: str,
        credentials: Any = None,
        request_bytes_max: int = REQUEST_BYTES_MAX,
    ) -> None:
        """Starts the server. Raises ConfigurationError if the port is not available."""
        self._engines, self._token = engines, token
        pool = concurrent.futures.ThreadPoolExecutor(CALLS_MAX, thread_name_prefix="rpc")
        options = [
            ("grpc.so_reuseport", 0),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", request_bytes_max),
        ]
        self._server = grpc.server(pool, options=options)
        handler = grpc.unary_unary_rpc_method_handler(
            self._answer, request_deserializer=json.loads, response_serializer=to_bytes
        )
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {CALL: handler}),))
        self.port = self._listen(listen, credentials)
        self._server.start()

    def close(self, seconds: float = STOP_SECONDS) -> None:
        """Stops the server. Calls in progress may finish within `seconds`."""
        self._server.stop(seconds).wait()

    def _listen(self, address: str, credentials: Any) -> int:
        try:
            if credentials is None:
                return int(self._server.add_insecure_port(address))
            return int(self._server.add_secure_port(address, credentials))
        except RuntimeError as error:  # gRPC raises RuntimeError if the port is not available.
            raise ConfigurationError(
                f"the RPC endpoint of the engines cannot listen at {address}: another program has the port, "
                "or the address does not belong to this host; stop that program, or set another address as engine.listen in "
                "conf/sluice.yaml"
            ) from error

    def _answer(self, request: Record, context: Any) -> Record:
        given = dict(context.invocation_metadata()).get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "the request does not have the token of this server")
        if request.get("form") != FORM or request.get("method") not in METHODS:
            context.abort(
                grpc.StatusCode.UNIMPLEMENTED,
                f"this server reads only requests in format {FORM}: run the same version of Sluice on both sides",
            )
        try:
            engine = self._engines.get_or_start(str(request["destination"]))
            return {"value": METHODS[request["method"]].call(engine, request["arguments"])}
        except SluiceError as error:
            return {"error": error_to_json(error)}
        # Any other error is a defect. The error's traceback goes to the log of this process, and not to the caller.
        except Exception as error:
            _log.exception("%s of %s failed", request["method"], request.get("destination"))
            return {
                "error": {
                    "code": SluiceError.code,
                    "message": f"{type(error).__name__} in the engine's process; the log of that process has the whole error",
                }
            }
