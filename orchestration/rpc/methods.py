"""Defines the table of RPC methods of an engine process: the name, arguments and answer of each method, and their form in JSON. The table
has the methods that ticks call and the methods that runs call. `remote_host` calls the methods, and `server` serves them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from sluice.batch_manifest.file import from_record, to_record
from sluice.cdc_engine.contracts import OutstandingBatch, StoppedTable
from sluice.cdc_engine.position import Position
from sluice.orchestration.base.batch_reference import BatchReference
from sluice.orchestration.base.ports import Offer
from sluice.orchestration.rpc.wire import Record

if TYPE_CHECKING:
    from sluice.orchestration.base.ports import EngineSnapshot


T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Codec(Generic[T]):
    """Converts a value to JSON (`write`) and back (`read`)."""

    write: Callable[[T], Any]
    read: Callable[[Any], T]

    def or_none(self) -> Codec[T | None]:
        """Returns the codec of a value that may be None."""
        return Codec(
            lambda value: None if value is None else self.write(value),
            lambda value: None if value is None else self.read(value),
        )


@dataclasses.dataclass(frozen=True)
class Method(Generic[T]):
    """An RPC method of an engine process. `arguments` has a codec for each argument. A call must pass all of them."""

    name: str
    answer: Codec[T]
    arguments: Mapping[str, Codec[Any]] = dataclasses.field(default_factory=dict)

    def request(self, arguments: Mapping[str, Any]) -> Record:
        """Converts a call's arguments to JSON."""
        return {name: codec.write(arguments[name]) for name, codec in self.arguments.items()}

    def call(self, engine: object, request: Record) -> Any:
        """Calls the engine's method of this name with the arguments of a request. Returns the answer as JSON."""
        arguments = {name: codec.read(request[name]) for name, codec in self.arguments.items()}
        return self.answer.write(getattr(engine, self.name)(**arguments))


@dataclasses.dataclass(frozen=True, kw_only=True)
class RemoteState:
    """The state of a remote engine at one moment, as its process sent it. The fields have the same meaning as those of
    `ports.EngineSnapshot`.
    """

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


def _write_state(state: EngineSnapshot) -> Record:
    return to_record(RemoteState(**{each.name: getattr(state, each.name) for each in dataclasses.fields(RemoteState)}))


def _record_of(kind: type[T]) -> Codec[T]:
    """Returns the codec for a dataclass."""
    return Codec(to_record, functools.partial(from_record, kind))


def _read_reasons(record: Record) -> dict[str, tuple[str, str]]:
    return {name: (state, reason) for name, (state, reason) in record.items()}


_TEXT, _NUMBER, _FLAG = Codec(str, str), Codec(float, float), Codec(bool, bool)
_NOTHING: Codec[None] = Codec(lambda _: None, lambda _: None)
_BATCH, _REFERENCE = _record_of(OutstandingBatch), _record_of(BatchReference)
_TEXTS: Codec[tuple[str, ...]] = Codec(list, tuple)
_REASONS: Codec[Mapping[str, tuple[str, str]]] = Codec(dict, _read_reasons)

# The methods of `ports.EngineHandle`.
STATUS: Method[EngineSnapshot] = Method("status", Codec(_write_state, functools.partial(from_record, RemoteState)))
OUTSTANDING = Method("outstanding", _BATCH.or_none())
HAND_OUT = Method("hand_out", _BATCH.or_none(), {"timeout_seconds": _NUMBER, "appendable": _FLAG})
TAKE = Method("take", _BATCH, {"batch": _BATCH, "append": _FLAG})
ACK = Method("ack", _NOTHING, {"batch": _BATCH})
ROLLBACK = Method("rollback", _NOTHING, {"batch": _BATCH, "damaged": _FLAG})
STOP_TABLES = Method("stop_tables", _NOTHING, {"batch": _BATCH, "reasons": _REASONS})
REPORT_LAKE = Method("report_lake", _NOTHING, {"troubles": _TEXTS})
REPORT_TICK = Method("report_tick", _NOTHING, {"failed": _TEXT})
REPORT_RUN = Method("report_run", _NOTHING, {"batch": _BATCH, "state": _TEXT})
REPORT_FAILING = Method("report_failing", _NOTHING, {"reason": _TEXT})
REPORT_WAITING = Method("report_waiting", _NOTHING, {"reason": _TEXT})
# Methods that `ports.EngineHandle` does not have; `served_engine` adds them. Ticks call `conf_digest`, and runs call the others.
CONF_DIGEST = Method("conf_digest", _TEXT)
OFFER = Method("offer", _record_of(Offer), {"timeout_seconds": _NUMBER})
TAKE_BY_REFERENCE = Method("take_by_reference", _NOTHING, {"reference": _REFERENCE, "append": _FLAG})
ACK_BY_REFERENCE = Method("ack_by_reference", _NOTHING, {"reference": _REFERENCE})

METHODS: dict[str, Method[Any]] = {
    each.name: each
    for each in (
        *(STATUS, OUTSTANDING, HAND_OUT, TAKE, ACK, ROLLBACK, STOP_TABLES),
        *(REPORT_LAKE, REPORT_TICK, REPORT_RUN, REPORT_FAILING, REPORT_WAITING),
        *(CONF_DIGEST, OFFER, TAKE_BY_REFERENCE, ACK_BY_REFERENCE),
    )
}
