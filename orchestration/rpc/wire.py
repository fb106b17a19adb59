"""Converts messages to and from JSON: batches, an engine's state, errors by code. Client and server use it. Pure."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from sluice.cdc_engine import errors
from sluice.cdc_engine.contracts import OutstandingBatch, StoppedTable
from sluice.cdc_engine.errors import SluiceError
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.states import TableState
from sluice.orchestration.base.ports import RunEngineAwayError

if TYPE_CHECKING:
    from sluice.orchestration.base.ports import EngineSnapshot

SERVICE, CALL = "sluice.Engine", "Call"
FORM = 5  # The version of requests and answers. Other versions are refused with a message.

Record = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RemoteState:
    """Implements `ports.EngineSnapshot`: the state of a remote engine at one moment."""

    state: str
    reason: str
    position: Position | None
    cursor: Position | None
    lag_seconds: float
    retention_left_hours: float | None
    oldest_binlog_hours: float | None
    rows_per_second: float
    ring_bytes: int
    ring_bytes_max: int
    ring_events: int
    waiting_bytes: int
    stopped_tables: tuple[StoppedTable, ...]
    troubles: tuple[str, ...]


class EngineRefusedError(SluiceError):
    """An error of the engine that no code here handles, with the engine's message and `code`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


# The errors that a tick or a run distinguishes, or that an operator knows by name. Each has only its message as
# argument.
_DISTINGUISHED: dict[str, type[SluiceError] | type[RunEngineAwayError]] = {
    kind.code: kind
    for kind in (
        errors.BatchNotFirstError,
        errors.BatchNotFoundError,
        errors.ConfigurationError,
        errors.EngineStartingError,
        errors.EngineStoppedError,
        errors.LeaseLostError,
        errors.MetaError,
        errors.NotStartedError,
        errors.SourceConnectionError,
        errors.StagingError,
        RunEngineAwayError,
    )
}


def error_to_json(error: SluiceError | RunEngineAwayError) -> Record:
    return {"code": error.code, "message": str(error)}


def error_of(record: Record) -> Exception:
    """Returns the error that a record of `wire` describes."""
    code, message = str(record["code"]), str(record["message"])
    kind = _DISTINGUISHED.get(code)
    return kind(message) if kind else EngineRefusedError(code, message)


def state_to_json(state: EngineSnapshot) -> Record:
    found = {field.name: getattr(state, field.name) for field in dataclasses.fields(RemoteState)}
    positions = {name: found[name].to_json() if found[name] else None for name in ("position", "cursor")}
    return {**found, **positions, "stopped_tables": [dataclasses.asdict(each) for each in state.stopped_tables]}


def state_of(record: Record) -> RemoteState:
    return RemoteState(
        **{
            **record,
            "position": _position(record["position"]),
            "cursor": _position(record["cursor"]),
            "stopped_tables": tuple(_stopped(each) for each in record["stopped_tables"]),
            "troubles": tuple(record["troubles"]),
        }
    )


def batch_to_json(batch: OutstandingBatch | None) -> Record | None:
    return None if batch is None else dataclasses.asdict(batch)


def batch_of(record: Record | None) -> OutstandingBatch | None:
    if record is None:
        return None
    start, end = Position.from_json(record["start"]), Position.from_json(record["end"])
    return OutstandingBatch(**{**record, "start": start, "end": end, "tables": tuple(record["tables"])})


def to_bytes(record: Record) -> bytes:
    return json.dumps(record).encode()


def _position(record: Record | None) -> Position | None:
    return Position.from_json(record) if record else None


def _stopped(record: Record) -> StoppedTable:
    position = Position.from_json(record["position"])
    return StoppedTable(**{**record, "state": TableState(record["state"]), "position": position})
