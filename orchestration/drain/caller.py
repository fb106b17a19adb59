"""Sends a run's requests to its engine over gRPC: implements `ports.Feed`. See `door`.

A request is sent only over a connection that the engine's process has accepted. So if no connection is made, nothing was requested; after
every other failure the engine may have executed the request.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc

from cdc_engine.errors import BatchNotFoundError, SluiceError
from orchestration.base.batch_reference import BatchReference
from orchestration.base.ports import Offer, RequestUnansweredError, RunEngineAwayError
from orchestration.drain.run_service import ACK, HAND_OUT, LENGTHEN, RUN_SERVICE_FILE, SERVICE

ANSWER_SECONDS_MAX = 10.0  # in addition to the requested wait: the engine syncs its ledger, and the machine may be busy
CONNECT_SECONDS_MAX = 2.0  # on the loopback address; a stopped process accepts no gRPC connection
OPTIONS = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]


class EngineRefusedError(SluiceError):
    """An error of the engine, with its own message; `code` is the engine's."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Caller:
    """The client of one run, used by one thread. The endpoint's address may change: a restarted engine host opens another one."""

    def __init__(self, directory: Path, destination: str) -> None:
        self._path, self._destination = directory / RUN_SERVICE_FILE, destination
        self._channel: Any = None
        self._address = ""

    def hand_out(self, timeout_seconds: float) -> Offer:
        answer = self._ask(HAND_OUT, {"timeout_seconds": timeout_seconds}, timeout_seconds)
        if leave := answer.get("leave"):
            return Offer(leave=str(leave))
        reference = answer.get("reference")
        return Offer(reference=BatchReference.from_config(reference) if reference else None)

    def lengthen(self, reference: BatchReference) -> BatchReference:
        return BatchReference.from_config(self._ask(LENGTHEN, {"reference": reference.to_config()}, 0.0)["reference"])

    def ack(self, reference: BatchReference) -> None:
        self._ask(ACK, {"reference": reference.to_config()}, 0.0)

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _ask(self, act: str, request: dict[str, Any], timeout_seconds: float) -> dict[str, Any]:
        address, token = self._run_service()
        seconds_max = timeout_seconds + ANSWER_SECONDS_MAX
        call = self._connected(address).unary_unary(
            f"/{SERVICE}/{act}", request_serializer=_to_bytes, response_deserializer=json.loads
        )
        try:
            answer: dict[str, Any] = call(
                {"destination": self._destination, **request},
                timeout=seconds_max,
                metadata=(("authorization", f"Bearer {token}"),),
            )
        except grpc.RpcError as error:
            self.close()
            raise self._failed(error, seconds_max) from error
        return _heard(answer)

    def _connected(self, address: str) -> Any:
        """Returns a connected channel. Raises FeedAwayError, in which case nothing was sent."""
        if self._channel is None or address != self._address:
            self.close()
            self._channel, self._address = grpc.insecure_channel(address, options=OPTIONS), address
            try:
                grpc.channel_ready_future(self._channel).result(CONNECT_SECONDS_MAX)
            except grpc.FutureTimeoutError as error:
                self.close()
                raise RunEngineAwayError(
                    f"the engine of {self._destination} accepts no connection at {address} within {CONNECT_SECONDS_MAX:g} s"
                ) from error
        return self._channel

    def _failed(self, error: grpc.RpcError, seconds_max: float) -> RunEngineAwayError:
        code = error.code() if isinstance(error, grpc.Call) else None
        where = f"the engine of {self._destination} at {self._address}"
        match code:
            case grpc.StatusCode.UNAUTHENTICATED:  # refused before the request was read
                return RunEngineAwayError(f"{where} refuses the token of {RUN_SERVICE_FILE} ({code})")
            case grpc.StatusCode.DEADLINE_EXCEEDED:
                return RequestUnansweredError(f"{where} has not answered for {seconds_max:g} s")
            case _:
                return RequestUnansweredError(f"the connection to {where} broke before the answer ({code})")

    def _run_service(self) -> tuple[str, str]:
        try:
            record = json.loads(self._path.read_text(encoding="utf-8"))
            return str(record["address"]), str(record["token"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunEngineAwayError(
                f"the engine of {self._destination} has no RPC endpoint ({self._path}: {error})"
            ) from error


def _heard(answer: dict[str, Any]) -> dict[str, Any]:
    """Returns the answer, or raises what the engine raised."""
    if away := answer.get("away"):
        raise RunEngineAwayError(str(away))
    if unanswered := answer.get("unanswered"):
        raise RequestUnansweredError(str(unanswered))
    if error := answer.get("error"):
        if error["code"] == BatchNotFoundError.code:
            raise BatchNotFoundError(error["message"])
        raise EngineRefusedError(str(error["code"]), str(error["message"]))
    return answer


def _to_bytes(request: dict[str, Any]) -> bytes:
    return json.dumps(request).encode()
