"""Calls engines in other processes: implements `ports.EngineHost` and `ports.EngineHandle` over gRPC. See `host`.

Each call has a deadline. Only connections are kept, and gRPC restores them by itself: an engine host may restart at any time, and so may
the caller's process. Each `get_or_start` finds out which of several hosts runs a destination.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from cdc_engine.config.conf_files import file_of
from cdc_engine.errors import EngineStartingError, LeaseLostError, SluiceError
from orchestration.remote.access import channel_to, token_of
from orchestration.remote.wire import CALL, FORM, SERVICE, batch_of, batch_to_json, error_of, state_of, to_bytes

if TYPE_CHECKING:
    from cdc_engine.config import SluiceConfig
    from cdc_engine.contracts import OutstandingBatch
    from orchestration.remote.wire import RemoteState

ANSWER_SECONDS_MAX = 10.0  # in addition to the requested wait: the engine syncs its ledger, and the machine may be busy
DIFFERS_SECONDS_MAX = 60.0  # the time in which both hosts follow a change of conf/
OTHERS_SECONDS_MAX = 4.0  # for hosts that did not run the destination at the last call: one may be dead


class EngineAwayError(SluiceError):
    """No engine host answers, or it rejects the caller."""

    code = "ENGINE_AWAY"


class _Line:
    """The connection to one engine host."""

    def __init__(self, address: str, config: SluiceConfig) -> None:
        self.address, self._config = address, config
        self._lock = threading.Lock()
        self._call: Any = None
        self._channel: Any = None

    def ask(
        self,
        destination: str,
        method: str,
        wait_seconds: float,
        arguments: Mapping[str, Any],
        answer_seconds_max: float | None = None,
    ) -> Any:
        """Returns the result of the engine's method. Raises what the method raised, or EngineAwayError."""
        seconds_max = wait_seconds + (ANSWER_SECONDS_MAX if answer_seconds_max is None else answer_seconds_max)
        request = {"form": FORM, "destination": destination, "method": method, **arguments}
        token = token_of(self._config.engine, self._config.data_dir, make=False)
        try:
            answer = self._opened()(
                request,
                timeout=seconds_max,
                metadata=(("authorization", f"Bearer {token}"),),
            )
        except grpc.RpcError as error:
            raise EngineAwayError(self._why(error, seconds_max)) from None
        if refusal := answer.get("error"):
            raise error_of(refusal)
        return answer["value"]

    def close(self) -> None:
        with self._lock:
            if self._channel is not None:
                self._channel.close()
            self._channel = self._call = None

    def _opened(self) -> Any:
        with self._lock:
            if self._call is None:
                self._channel = channel_to(self.address, self._config.engine)
                self._call = self._channel.unary_unary(
                    f"/{SERVICE}/{CALL}", request_serializer=to_bytes, response_deserializer=json.loads
                )
            return self._call

    def _why(self, error: grpc.RpcError, seconds: float) -> str:
        code = error.code() if isinstance(error, grpc.Call) else None
        details = (error.details() or "") if isinstance(error, grpc.Call) else type(error).__name__
        known = {
            grpc.StatusCode.UNAUTHENTICATED: "refuses the token: both sides must have the same (engine.token_env)",
            grpc.StatusCode.DEADLINE_EXCEEDED: (
                f"has not answered for {seconds:.0f} s: it hangs, or its machine cannot be reached"
            ),
            grpc.StatusCode.UNIMPLEMENTED: f"is of another version of Sluice, or is none ({details})",
            grpc.StatusCode.UNAVAILABLE: f"does not answer ({details}): `sluice engine` starts one there, `sluice up` on this host",
        }
        return f"the engine host at {self.address} {known.get(code, f'fails ({code}: {details})')}"


class RemoteEngine:
    """Implements `ports.EngineHandle`. `directory`: the destination's; all hosts see it under the same path."""

    def __init__(self, line: _Line, destination: str, directory: Path) -> None:
        self._line, self._destination, self.directory = line, destination, directory

    def status(self) -> RemoteState:
        return state_of(self._ask("status"))

    def outstanding(self) -> OutstandingBatch | None:
        return batch_of(self._ask("outstanding"))

    def hand_out(self, timeout_seconds: float) -> OutstandingBatch | None:
        return batch_of(self._ask("hand_out", timeout_seconds, timeout_seconds=timeout_seconds))

    def lengthen(self, batch: OutstandingBatch) -> OutstandingBatch:
        return batch_of(self._ask("lengthen", batch=batch_to_json(batch))) or batch

    def ack(self, batch: OutstandingBatch) -> None:
        self._ask("ack", batch=batch_to_json(batch))

    def rollback(self, batch: OutstandingBatch, *, damaged: bool = False) -> None:
        self._ask("rollback", batch=batch_to_json(batch), damaged=damaged)

    def stop_tables(self, batch: OutstandingBatch, reasons: Mapping[str, tuple[str, str]]) -> None:
        self._ask("stop_tables", batch=batch_to_json(batch), reasons=dict(reasons))

    def tell_lake(self, troubles: tuple[str, ...]) -> None:
        self._ask("tell_lake", troubles=list(troubles))

    def tell_tick(self, failed: str = "") -> None:
        self._ask("tell_tick", failed=failed)

    def tell_run(self, batch: OutstandingBatch, state: str) -> None:
        self._ask("tell_run", batch=batch_to_json(batch), state=state)

    def tell_failing(self, reason: str) -> None:
        self._ask("tell_failing", reason=reason)

    def tell_waiting(self, reason: str) -> None:
        self._ask("tell_waiting", reason=reason)

    def _ask(self, method: str, wait_seconds: float = 0.0, **arguments: Any) -> Any:
        return self._line.ask(self._destination, method, wait_seconds, arguments)


class RemoteHost:
    """Implements `ports.EngineHost` for engines in other processes."""

    def __init__(self, config: SluiceConfig) -> None:
        self._config = config
        self._lines = [_Line(address, config) for address in config.engine.addresses]
        self._had: dict[str, _Line] = {}  # destination → the host that ran it last, which is called first
        self._confs: dict[str, str] = {}  # destination → digest of the file that its engine uses
        self._differs_since: dict[str, float] = {}

    def get_or_start(self, destination: str) -> RemoteEngine:
        """Returns the engine of the host that runs the destination; the others are standby. Raises what `ports.EngineHost` defines;
        EngineAwayError if no host answers.
        """
        told: list[SluiceError] = []
        had = self._had.get(destination)
        for line in sorted(self._lines, key=lambda each: each is not had):
            seconds_max = None if had in {line, None} else OTHERS_SECONDS_MAX
            try:
                told_of = line.ask(destination, "get_or_start", 0.0, {}, seconds_max)
            except SluiceError as error:
                told.append(error)
            else:
                self._had[destination], self._confs[destination] = line, told_of["conf"]
                return RemoteEngine(line, destination, self._config.destination_dir(destination))
        raise min(told, key=weight)

    def conf_troubles(self, destination: str, digest: str, now: float | None = None) -> tuple[str, ...]:
        """Returns a sentence if the engine has been using another version of the destination's file than the one with this digest for a
        while.
        """
        now = time.monotonic() if now is None else now
        if self._confs.get(destination, "") in {"", digest}:
            self._differs_since.pop(destination, None)
            return ()
        if now - self._differs_since.setdefault(destination, now) < DIFFERS_SECONDS_MAX:
            return ()
        there = f"{file_of(destination)} in conf/ is another on the engine host at {self._had[destination].address}"
        mend = 'make both the same; where they are, press "Reload" of the code location'
        return (f"{there} than on this one, so batches are not merged as they were staged: {mend}",)

    def close(self) -> None:
        for line in self._lines:
            line.close()


def weight(error: SluiceError) -> int:
    """Returns the rank of a host's error; of several hosts' errors the lightest is reported. A starting engine precedes a host that is
    broken, then one that is standby, then one that does not answer.
    """
    for at, kind in enumerate((EngineAwayError, LeaseLostError)):
        if isinstance(error, kind):
            return 3 - at
    return 0 if isinstance(error, EngineStartingError) else 1
