"""Provides a gateway like those that platforms have in front of a Spark Connect server: it terminates TLS and requires a bearer token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from sluice.console.toolchain.ports import LOOPBACK
from tests.certificates import make_certificate

SIZES = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
THREADS = 32


class Gateway:
    """Forwards calls to a Spark Connect server. `authority` is the PEM file of its certificate. `calls` and `refused` count the calls that
    it forwarded and refused.
    """

    def __init__(self, connect_port: int, token: str, folder: Path) -> None:
        self.calls = self.refused = 0
        self.authority, key = make_certificate(folder)
        self._token = token
        self._channel = grpc.insecure_channel(f"{LOOPBACK}:{connect_port}", options=SIZES)
        self._server = grpc.server(ThreadPoolExecutor(THREADS), handlers=(_Handler(self._forwarding),), options=SIZES)
        credentials = grpc.ssl_server_credentials([(key.read_bytes(), self.authority.read_bytes())])
        self.port: int = self._server.add_secure_port(f"{LOOPBACK}:0", credentials)

    def __enter__(self) -> Gateway:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()
        self._channel.close()

    def _forwarding(self, method: str) -> Callable[[Any, Any], Iterator[bytes]]:
        call: Any = self._channel.stream_stream(method)

        def forward(requests: Any, context: Any) -> Iterator[bytes]:
            if dict(context.invocation_metadata()).get("authorization") != f"Bearer {self._token}":
                self.refused += 1
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is not valid")
            self.calls += 1
            try:
                answers = call(requests)
                yield from answers
            except grpc.RpcError as error:
                reported: Any = error
                context.set_trailing_metadata(reported.trailing_metadata() or ())
                context.abort(reported.code(), reported.details())

        return forward


class _Handler(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    def __init__(self, forwarding: Callable[[str], Callable[[Any, Any], Iterator[bytes]]]) -> None:
        self._forwarding = forwarding

    def service(self, handler_call_details: Any) -> Any:
        return grpc.stream_stream_rpc_method_handler(self._forwarding(handler_call_details.method))
