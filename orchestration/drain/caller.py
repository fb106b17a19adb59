"""Calls at an engine's door, from inside a run: implements `ports.Feed`. See `door`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc

from cdc_engine.errors import BatchNotFoundError, SluiceError
from orchestration.batch_reference import BatchReference
from orchestration.drain.door import ACK, DOOR_FILE, HAND_OUT, LENGTHEN, SERVICE
from orchestration.ports import FeedAwayError, Offer

ANSWER_SECONDS_MAX = 10.0  # beside what an engine is asked to wait: it syncs its ledger, and the machine may be busy
OPTIONS = [("grpc.enable_http_proxy", 0)]


class EngineRefusedError(SluiceError):
    """What the engine said, in its own words; `code` is the engine's."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Caller:
    """Of one run, in one thread. The door may move: an engine's host that was started again opens another."""

    def __init__(self, directory: Path, destination: str) -> None:
        self._path, self._destination = directory / DOOR_FILE, destination
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
        address, token = self._door()
        if self._channel is None or address != self._address:
            self.close()
            self._channel, self._address = grpc.insecure_channel(address, options=OPTIONS), address
        call = self._channel.unary_unary(
            f"/{SERVICE}/{act}", request_serializer=_to_bytes, response_deserializer=json.loads
        )
        try:
            answer: dict[str, Any] = call(
                {"destination": self._destination, **request},
                timeout=timeout_seconds + ANSWER_SECONDS_MAX,
                metadata=(("authorization", f"Bearer {token}"),),
            )
        except grpc.RpcError as error:
            self.close()
            why = error.code() if isinstance(error, grpc.Call) else type(error).__name__
            raise FeedAwayError(f"the engine of {self._destination} does not answer at {address} ({why})") from error
        return _heard(answer)

    def _door(self) -> tuple[str, str]:
        try:
            record = json.loads(self._path.read_text(encoding="utf-8"))
            return str(record["address"]), str(record["token"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FeedAwayError(f"the engine of {self._destination} has no door ({self._path}: {error})") from error


def _heard(answer: dict[str, Any]) -> dict[str, Any]:
    """Raises what the engine raised."""
    if away := answer.get("away"):
        raise FeedAwayError(str(away))
    if error := answer.get("error"):
        if error["code"] == BatchNotFoundError.code:
            raise BatchNotFoundError(error["message"])
        raise EngineRefusedError(str(error["code"]), str(error["message"]))
    return answer


def _to_bytes(request: dict[str, Any]) -> bytes:
    return json.dumps(request).encode()
