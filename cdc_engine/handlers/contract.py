"""What a handler is, and what it is told. Packages that are no part of Sluice build on this file: what it has stays."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Protocol

from cdc_engine.position import Position


@dataclasses.dataclass(frozen=True, kw_only=True)
class HandledBatch:
    """One hand-out of a batch. (ledger_id, delivery) names it for ever: who is called twice with it knows by that.

    From after `start` up to `end`, in the source's binlog. `rows`: row images; `size_bytes`: of the staged files; `tables`: the
    "database.table" in it. `folder`: with the staged Parquet files and manifest.json, to be read only; gone once the batch is acked.
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
    """Called by the engine of one destination, one call at a time, on a thread of its own. To be derived from: what is not overridden
    does nothing.

    What a method raises holds up the destination under the state HANDLER_FAILED, with the handler's name: the call is made again with
    each tick of the sensor, and no batch is handed out before it returns. A kill may have a call made twice.
    """

    def before(self, batch: HandledBatch) -> None:
        """The batch is staged and is to be handed out to a run. Where this raises, it is staged anew under another delivery."""

    def after(self, batch: HandledBatch) -> None:
        """The batch is in the lake and acked; the next one is not handed out yet."""

    def retry(self, batch: HandledBatch, reason: str) -> None:
        """The batch could not be merged, and the same changes are to be handed out again."""
