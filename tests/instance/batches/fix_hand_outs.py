"""Provides hand-outs over a store and a ledger in memory, whose staging the test controls."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.cdc_engine.contracts import Batch, OutstandingBatch, Staged, StoppedTable
from sluice.cdc_engine.errors import (
    SluiceError,
)
from sluice.cdc_engine.handlers.calls import Calls
from sluice.cdc_engine.instance.batches.hand_out import BatchLimits, HandOut
from sluice.cdc_engine.instance.batches.stream_batches import StreamBatches
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.store.memory_store import MemoryEventStore
from tests.fix_blocks import Source, numbers_in
from tests.fix_ledgers import CLIENT, MemoryLedger
from tests.handlers.fix_handlers import Remembering
from tests.waiting import wait_for

START = Position(epoch=1, file="mysql-bin.000001", offset=4, server_uuid="u")


class Late:
    """A hand-out whose staging waits until the test lets it end."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.may_end = folder, threading.Event()
        self.meta = MemoryLedger()
        self.meta.update(lambda ledger: ledger.set_cursor(START).subscribe(CLIENT))
        self.store, self.source = (
            MemoryEventStore(folder / "spill", start=START),
            Source(time_us=int(time.time() * 1e6)),
        )
        self.stream = StreamBatches("shop", self.store, self.meta, lambda _: pytest.fail("the store has everything"))
        limits = BatchLimits(bytes_max=1 << 20, events_max=1000)
        self.audit = Remembering()
        self.staged: list[list[int]] = []
        self.trouble: SluiceError | None = None
        self.stops: tuple[StoppedTable, ...] = ()  # The stops of a batch that is staged in several parts.
        self.stops_at_once = False  # Whether they also occur in a batch of one part.
        self.made = functools.partial(
            HandOut, "shop", self.stream, self.meta, stage=self.stage, limits=limits, directory=folder
        )
        self.hand_out = self.made(handlers=self.calls())

    def calls(self) -> Calls:
        return Calls("shop", self.folder, [("audit", self.audit)])

    def stage(self, batch: Batch, record: OutstandingBatch, more: Callable[[Batch], Batch]) -> Staged:
        self.may_end.wait()
        parts = [batch]
        while not parts[-1].empty:
            parts.append(more(parts[-1]))
        assert parts[-2].end == record.end
        self.staged.append([number for part in parts[:-1] for number in numbers_in(part)])
        if self.trouble is not None:
            raise self.trouble
        path = self.folder / f"{record.end.offset}-{record.delivery}"
        path.mkdir()
        return Staged(
            path=path,
            rows=1,
            size_bytes=1,
            tables=("shop.orders",),
            first_commit_time_us=1,
            stopped=self.stops if self.stops_at_once or len(parts) > 2 else (),
        )

    def staged_late(self) -> OutstandingBatch:
        """Requests the next batch without waiting for it. Then lets the staging end, and returns the batch."""
        self.store.put(self.source.block([1]))
        assert self.hand_out.next(0.0) is None
        assert not self.hand_out.while_idle(lambda: pytest.fail("a batch is being staged"))
        self.may_end.set()
        return wait_for("the batch is staged", self.hand_out.outstanding)


class Open(Late):
    """A hand-out without handlers, whose staging does not wait. An appendable batch with the change 1 is in flight."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.may_end.set()
        self.hand_out.close()
        self.hand_out = self.made()
        before = self.next_of_one()
        assert not before.appendable, "no run has reached this engine yet"
        assert self.hand_out.take(before) == before
        self.hand_out.ack(before)
        self.first = self.next_of_one()
        assert self.first.appendable

    def next_of_one(self) -> OutstandingBatch:
        self.come(1)
        return self.next()

    def next(self) -> OutstandingBatch:
        return wait_for("a batch is staged", lambda: self.hand_out.next(60.0, appendable=True))

    def come(self, changes: int) -> None:
        """Adds this many changes, each in its own transaction."""
        self.store.put(self.source.block([1] * changes))

    @property
    def head(self) -> OutstandingBatch:
        head = self.hand_out.outstanding()
        assert head is not None
        return head

    def restart(self) -> None:
        self.hand_out.close()
        self.hand_out = self.made()

    def folders(self) -> set[str]:
        return {path.name for path in self.folder.glob("[0-9]*")}
