"""Defines the methods that an engine host serves: every method of `ports.EngineHandle`, with its arguments as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.cdc_engine.errors import BatchNotFoundError
from sluice.orchestration.rpc.wire import batch_of, batch_to_json, state_to_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluice.cdc_engine.contracts import OutstandingBatch
    from sluice.orchestration.base.ports import EngineHandle
    from sluice.orchestration.rpc.server import Method
    from sluice.orchestration.rpc.wire import Record

HAND_OUT_SECONDS_MAX = 20.0


def _batch(request: Record) -> OutstandingBatch:
    batch = batch_of(request["batch"])
    if batch is None:
        raise BatchNotFoundError("no batch was named")
    return batch


def _hand_out(engine: EngineHandle, request: Record) -> Record | None:
    seconds = min(float(request["timeout_seconds"]), HAND_OUT_SECONDS_MAX)
    return batch_to_json(engine.hand_out(seconds, appendable=bool(request["appendable"])))


def _stop_tables(engine: EngineHandle, request: Record) -> None:
    engine.stop_tables(_batch(request), {name: (why[0], why[1]) for name, why in request["reasons"].items()})


METHODS: dict[str, Method] = {
    "status": lambda engine, _: state_to_json(engine.status()),
    "outstanding": lambda engine, _: batch_to_json(engine.outstanding()),
    "hand_out": _hand_out,
    "take": lambda engine, request: batch_to_json(engine.take(_batch(request), append=bool(request["append"]))),
    "ack": lambda engine, request: engine.ack(_batch(request)),
    "rollback": lambda engine, request: engine.rollback(_batch(request), damaged=bool(request["damaged"])),
    "stop_tables": _stop_tables,
    "tell_lake": lambda engine, request: engine.tell_lake(tuple(request["troubles"])),
    "tell_tick": lambda engine, request: engine.tell_tick(str(request.get("failed") or "")),
    "tell_run": lambda engine, request: engine.tell_run(_batch(request), str(request["state"])),
    "tell_failing": lambda engine, request: engine.tell_failing(str(request["reason"])),
    "tell_waiting": lambda engine, request: engine.tell_waiting(str(request["reason"])),
}


def engine_methods(conf: Callable[[str], str]) -> dict[str, Method]:
    """Returns the methods of an engine host. `conf`: returns the digest of the conf/ file with which a destination's engine runs; callers
    compare it with theirs.
    """
    return {**METHODS, "get_or_start": lambda _, request: {"conf": conf(str(request["destination"]))}}
