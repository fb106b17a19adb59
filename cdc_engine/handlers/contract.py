"""Defines the methods of a handler, and the values that they get. Packages outside Sluice import these names, so the names must not be
changed or removed.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Protocol

from sluice.cdc_engine.position import Position


@dataclasses.dataclass(frozen=True, kw_only=True)
class HandledBatch:
    """One delivery of a batch. `ledger_id` and `delivery` together identify it, so a handler can recognize a repeated call.

    - `start`, `end`: the batch has the changes after `start` up to `end` in the source's binlog.
    - `rows`: number of row images. `size_bytes`: bytes of the staged files. `tables`: names as "database.table".
    - `folder`: the staged Parquet files and manifest.json. A handler must only read them. Sluice removes them after the ack.
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
    """A base class for handlers. Methods that a handler does not override do nothing. The engine calls the methods of a destination's
    handlers one after the other, in its staging thread.

    If a method raises an error, the destination gets the state HANDLER_FAILED with the handler's name. The engine repeats the call at each
    tick of the sensor, and hands out no batch until the call returns. If the process is killed, the next process may make a call again that
    has already returned.
    """

    def before(self, batch: HandledBatch) -> None:
        """Called after the batch is staged, and before a run gets the batch. If the method raises an error, the batch is staged again with
        another delivery number.
        """

    def after(self, batch: HandledBatch) -> None:
        """Called after the batch is merged and acked, and before the next batch is handed out."""

    def retry(self, batch: HandledBatch, reason: str) -> None:
        """Called after the batch is rolled back, and before the same changes are handed out again. `reason` says why the batch was rolled
        back.
        """
