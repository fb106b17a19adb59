"""Calls the handlers of a destination before and after each batch. No call is lost in a crash.

For an ack or a rollback, Sluice first records the intended call in `handlers.json`, then writes the ledger, and then calls the handlers.
After a crash, the next process compares this record with the ledger to find out whether the handlers must still be called.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Literal

from sluice.cdc_engine.contracts import OutstandingBatch
from sluice.cdc_engine.errors import HandlerError, MetaError
from sluice.cdc_engine.handlers.contract import BatchHandler, HandledBatch
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.records.contract import RecordStore
from sluice.cdc_engine.records.location import record_store

FILE = "handlers.json"
Kind = Literal["after", "retry"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
    """A call of a handler's method (`kind`) for a batch: `after` when the ledger has the batch's ack, `retry` when the batch is rolled
    back. `reason`: why the batch is rolled back, or empty.
    """

    kind: Kind
    batch: OutstandingBatch
    reason: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LedgerExtract:
    """The values of a ledger from which `due` decides when a recorded call must be made. `outstanding` are the batches in flight."""

    ledger_id: str
    cursor: Position | None
    outstanding: Collection[OutstandingBatch]


class Due(enum.Enum):
    NOT_YET = "the batch is in flight: the ledger has neither its ack nor its rollback"
    NOW = "the ledger has the ack or the rollback of the batch"
    NEVER = "the ledger is not the one that had the batch, or it is an older copy without the ack of the batch"


def due(call: Call, line: LedgerExtract) -> Due:
    """Returns when the recorded call must be made. NOW: the ledger has the recorded ack or rollback. NOT_YET: the batch is still in
    flight. NEVER: the recorded ack was not written, or the batch belongs to another ledger. `line` has the current values of the ledger.
    """
    if call.batch.ledger_id != line.ledger_id:
        return Due.NEVER
    if any(each.delivery == call.batch.delivery for each in line.outstanding):
        return Due.NOT_YET
    acked = line.cursor is not None and line.cursor.order_key >= call.batch.end.order_key
    return Due.NOW if acked or call.kind == "retry" else Due.NEVER


class Calls:
    """Calls the handlers of one destination, in the order of `handlers` (name, handler). Makes no calls if the destination has no handlers.
    `fence` is called before a call is recorded, and raises an error if another process has taken over the destination. The constructor
    raises MetaError if `handlers.json` cannot be parsed.
    """

    def __init__(
        self,
        destination: str,
        directory: Path,
        handlers: Sequence[tuple[str, BatchHandler]] = (),
        *,
        fence: Callable[[], None] = lambda: None,
    ) -> None:
        self._destination, self._directory, self._handlers = destination, directory, handlers
        self._fence, self._records, self._lock = fence, record_store(directory), threading.Lock()
        self._call = _read(self._records) if handlers else None
        # Indices of the handlers that have returned from the recorded call in this process.
        self._called: set[int] = set()
        if not handlers:
            self._records.remove(FILE)  # Removes a recorded call: it was for handlers that conf/ no longer has.

    @property
    def any(self) -> bool:
        """Whether the destination has handlers."""
        return bool(self._handlers)

    def before(self, batch: OutstandingBatch) -> None:
        """Calls `before` of each handler for a staged batch. Raises HandlerError if a handler fails."""
        for name, handler in self._handlers:
            with self._named(name, "before", batch):
                handler.before(self._handled(batch))

    def will_be(self, kind: Kind, batch: OutstandingBatch, line: LedgerExtract, reason: str = "") -> None:
        """Records the call that the handlers get after the caller has written the ack (`kind` "after") or rollback ("retry") of a batch to
        the ledger. If `will_be` raises MetaError, the caller must not write the ledger. Records nothing if the batch is not in flight,
        because the ledger refuses an ack or rollback of such a batch.
        """
        if not self._handlers or all(each.delivery != batch.delivery for each in line.outstanding):
            return
        self._fence()
        call = Call(kind=kind, batch=batch, reason=reason)
        self._records.put(FILE, json.dumps(dataclasses.asdict(call), indent=1))
        with self._lock:
            self._call, self._called = call, set()

    def owed(self, line: LedgerExtract) -> bool:
        """Returns True if `call_due` must be called before the next batch is handed out. Returns False if there is no recorded call, or if
        the batch of the call is still in flight.
        """
        call = self._call
        return call is not None and due(call, line) is not Due.NOT_YET

    def call_due(self, line: LedgerExtract) -> None:
        """Makes the recorded call, and then removes the record. Does nothing while the batch of the call is in flight. If the result of
        `due` is NEVER, only removes the record. Skips handlers that have already returned from this call in this process. Raises
        HandlerError if a handler fails, and keeps the record.
        """
        with self._lock:
            call, called = self._call, self._called
        if call is None or (when := due(call, line)) is Due.NOT_YET:
            return
        for index, (name, handler) in enumerate(self._handlers if when is Due.NOW else ()):
            if index not in called:
                with self._named(name, call.kind, call.batch):
                    self._call_one(handler, call)
                called.add(index)
        with self._lock:
            if self._call is call:
                self._call = None
                self._records.remove(FILE)

    def _call_one(self, handler: BatchHandler, call: Call) -> None:
        if call.kind == "after":
            handler.after(self._handled(call.batch))
        else:
            handler.retry(self._handled(call.batch), call.reason)

    def _named(self, name: str, when: str, batch: OutstandingBatch) -> _Named:
        return _Named(
            f"the handler {name} failed in `{when}` for delivery {batch.delivery}, the batch that ends at {batch.end}"
        )

    def _handled(self, batch: OutstandingBatch) -> HandledBatch:
        return HandledBatch(
            destination=self._destination,
            ledger_id=batch.ledger_id,
            delivery=batch.delivery,
            start=batch.start,
            end=batch.end,
            rows=batch.rows,
            size_bytes=batch.bytes,
            tables=batch.tables,
            folder=self._directory / batch.path,
        )


class _Named:
    """A context manager that raises any error in its block as a HandlerError. The message begins with `message`."""

    def __init__(self, message: str) -> None:
        self._message = message

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, Exception):
            raise HandlerError(
                f"{self._message}: {type(error).__name__}: {error}; Sluice calls the handler again with each "
                "tick, and hands out no batch before the handler returns"
            ) from error


def _read(records: RecordStore) -> Call | None:
    text = records.get(FILE)
    if text is None:
        return None
    try:
        record: dict[str, Any] = json.loads(text)
        batch = record["batch"]
        ends = {name: Position.from_json(batch[name]) for name in ("start", "end")}
        given = OutstandingBatch(**{**batch, **ends, "tables": tuple(batch["tables"])})
        return Call(kind=record["kind"], batch=given, reason=record["reason"])
    except (ValueError, KeyError, TypeError) as error:
        raise MetaError(
            f"{records.where(FILE)} cannot be read ({type(error).__name__}); this record says for which batch "
            "Sluice calls the handlers next: if you remove the record, the handlers are not called for this batch"
        ) from error
