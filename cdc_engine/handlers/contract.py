"""Defines the protocol of a handler and the values that it gets. Packages outside Sluice depend on this file: nothing in it is removed or
changed.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Protocol

from sluice.cdc_engine.position import Position


@dataclasses.dataclass(frozen=True, kw_only=True)
class HandledBatch:
    """One delivery of a batch. (ledger_id, delivery) identifies it permanently: a handler that is called twice recognizes it by them.

    It reaches from after `start` up to `end` in the source's binlog. `rows`: row images; `size_bytes`: of the staged files; `tables`:
    their "database.table". `folder`: has the staged Parquet files and manifest.json, for reading only; it is removed once the batch is
    acked.
    """

    destination: str
    ledger_id: str
    delivery: int
    start: Position
    end: Position
    rows: int
    size_bytes: int
    tables: tuple[str, ...]
    folder: Path


class BatchHandler(Protocol):
    """A base class of handlers. The engine of one destination calls it, one call at a time, on a thread of its own. A method that is not
    overridden does nothing.

    An error that a method raises holds up the destination in the state HANDLER_FAILED, with the handler's name. The call is repeated with
    each tick of the sensor, and no batch is handed out before it returns. A call may be made twice if the process is killed.
    """

    def before(self, batch: HandledBatch) -> None:
        """Called when the batch is staged, before it is handed out to a run. If this raises, the batch is staged again under another
        delivery.
        """

    def after(self, batch: HandledBatch) -> None:
        """Called when the batch is merged and acked, before the next one is handed out."""

    def retry(self, batch: HandledBatch, reason: str) -> None:
        """Called when the batch could not be merged, before the same changes are handed out again."""
