"""Defines the protocol of a handler and the values that it gets. Packages outside Sluice depend on this file, so names in it must not be
removed or changed.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Protocol

from sluice.cdc_engine.position import Position


@dataclasses.dataclass(frozen=True, kw_only=True)
class HandledBatch:
    """One delivery of a batch. (ledger_id, delivery) is unique: a handler can use it to recognize a repeated call.

    `start`, `end`: the batch contains the changes after `start` up to `end` in the source's binlog. `rows`: number of row images.
    `size_bytes`: bytes of the staged files. `tables`: names as "database.table". `folder`: contains the staged Parquet files and
    manifest.json, which a handler must only read; Sluice removes it after the ack.
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
    """A base class for handlers. The engine makes the calls of a destination one at a time, in its staging thread. A method that a handler
    does not override does nothing.

    If a method raises an error, the destination gets the state HANDLER_FAILED, with the handler's name. The engine repeats the call at
    each tick of the sensor, and hands out no batch before the call returns. A call can be made twice if the process is killed.
    """

    def before(self, batch: HandledBatch) -> None:
        """Called after the batch is staged and before a run gets it. If this raises an error, the batch is staged again with another
        delivery number.
        """

    def after(self, batch: HandledBatch) -> None:
        """Called after the batch is merged and acked, and before the next one is handed out."""

    def retry(self, batch: HandledBatch, reason: str) -> None:
        """Called after the batch is rolled back, and before the same changes are handed out again. `reason`: why it was not merged."""
