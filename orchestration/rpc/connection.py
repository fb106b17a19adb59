"""Calls methods of an `RpcServer`. Each call has a deadline. gRPC restores a broken connection."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from sluice.cdc_engine.config import EngineConfig
from sluice.orchestration.base.ports import EngineAwayError
from sluice.orchestration.rpc.access import channel_to
from sluice.orchestration.rpc.wire import CALL, FORM, SERVICE, error_of, to_bytes

if TYPE_CHECKING:
    from sluice.orchestration.rpc.methods import Method

T = TypeVar("T")

# A call may ask the engine to wait for a time. The caller waits this much longer for the answer, because the engine may have to sync its
# ledger, and the machine may be busy.
ANSWER_SECONDS_MAX = 10.0


class Connection:
    """Calls the methods of one server. `token` returns the token, and is called before each call."""

    def __init__(self, address: str, config: EngineConfig, token: Callable[[], str]) -> None:
        self.address, self._config, self._token = address, config, token
        self._lock = threading.Lock()
        self._call: Any = None
        self._channel: Any = None

    def call(
        self,
        destination: str,
        method: Method[T],
        arguments: Mapping[str, Any],
        answer_seconds_max: float | None = None,
    ) -> T:
        """Calls a method and returns its answer. Waits for the answer for at most `answer_seconds_max` (ANSWER_SECONDS_MAX if it is None),
        in addition to `timeout_seconds` in the arguments. Raises the method's error, or EngineAwayError if there is no answer.
        """
        wait_seconds = float(arguments.get("timeout_seconds", 0.0))
        seconds_max = wait_seconds + (ANSWER_SECONDS_MAX if answer_seconds_max is None else answer_seconds_max)
        called = {"destination": destination, "method": method.name, "arguments": method.request(arguments)}
        request = {"form": FORM, **called}
        metadata = (("authorization", f"Bearer {self._token()}"),)
        call = self._opened()
        try:
            answer = call(request, timeout=seconds_max, metadata=metadata)
        except grpc.RpcError as error:
            self._read_ca_again(call, error)
            raise EngineAwayError(self._why(error, seconds_max)) from None
        if refusal := answer.get("error"):
            raise error_of(refusal)
        return method.answer.read(answer["value"])

    def close(self) -> None:
        with self._lock:
            if self._channel is not None:
                self._channel.close()
            self._channel = self._call = None

    def _opened(self) -> Any:
        with self._lock:
            if self._call is None:
                self._channel = channel_to(self.address, self._config)
                self._call = self._channel.unary_unary(
                    f"/{SERVICE}/{CALL}", request_serializer=to_bytes, response_deserializer=json.loads
                )
            return self._call

    def _read_ca_again(self, call: Any, error: grpc.RpcError) -> None:
        """Makes the next call open another channel, which reads `engine.ca_file` again. Called if `call` failed with `error`. A channel
        keeps the content that the file had when the channel was opened, and the file may have changed since. Does nothing without this
        file, or if the error is not about the connection. Calls of other threads may still use the old channel, so it is not closed.
        """
        unavailable = isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.UNAVAILABLE
        with self._lock:
            if unavailable and self._config.ca_file is not None and self._call is call:
                self._channel = self._call = None

    def _why(self, error: grpc.RpcError, seconds: float) -> str:
        code = error.code() if isinstance(error, grpc.Call) else None
        details = (error.details() or "") if isinstance(error, grpc.Call) else type(error).__name__
        known = {
            grpc.StatusCode.UNAUTHENTICATED: "refuses the token: the process was restarted, or the two sides have different tokens",
            grpc.StatusCode.DEADLINE_EXCEEDED: (
                f"has not answered for {seconds:g} s: the process hangs, or its machine cannot be reached"
            ),
            grpc.StatusCode.UNIMPLEMENTED: f"is of another version of Sluice, or is not an engine process ({details})",
            grpc.StatusCode.UNAVAILABLE: (
                f"does not answer ({details}): start an engine process with `sluice engine` on that host, or with "
                "`sluice up` on this host"
            ),
        }
        return f"the engine's process at {self.address} {known.get(code, f'fails ({code}: {details})')}"
