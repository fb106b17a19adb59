"""Checks whether a gRPC server on 127.0.0.1 answers, without blocking. A request stays open while the caller does other work.

This module checks the code server and Spark. During a blocking call, the caller would notice neither the death of the server's process nor
Ctrl-C.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from sluice.console.toolchain.errors import ServerError
from sluice.console.toolchain.ports import LOOPBACK, listens

# A request that has no answer after this many seconds has failed. The next call of `answers` then sends a new request.
QUESTION_SECONDS_MAX = 10.0
# Codes of errors after which a new request is sent, because the server may only be starting or busy. Every other error is final.
PASSING = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
# The option that gives a channel its own connection. By default, all channels to an address share one connection, and a new channel waits
# until this connection is established again.
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]


class GrpcProbe:
    """Checks the server on one port. `send` gets a channel and a time limit in seconds. It sends a request over the channel, and returns
    gRPC's future of the answer at once.
    """

    def __init__(self, port: int, send: Callable[[Any, float], Any]) -> None:
        self._port, self._send = port, send
        self._channel: Any = None
        self._answer: Any = None

    def answers(self) -> bool:
        """Returns True if the server has answered a request successfully. Otherwise returns False. Sends a request if none is open and a
        program listens on the port. Raises ServerError if the server refuses the request, because the server would also refuse later
        requests.
        """
        if self._answer is None:
            if not listens(self._port):
                return False
            self._channel = grpc.insecure_channel(f"{LOOPBACK}:{self._port}", options=OWN_CONNECTION)
            self._answer = self._send(self._channel, QUESTION_SECONDS_MAX)
        if not self._answer.done():
            return False
        code, details = self._answer.code(), self._answer.details()
        self.forget()
        if code is not grpc.StatusCode.OK and code not in PASSING:
            raise ServerError(f"the server on port {self._port} refuses requests ({code.name}: {details})")
        return code is grpc.StatusCode.OK

    def forget(self) -> None:
        """Closes the channel, which also cancels the open request."""
        if self._channel:
            self._channel.close()
        self._channel = self._answer = None
