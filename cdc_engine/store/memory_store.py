"""The event store in memory (`EventStore`): an ordered list of blocks, and the ring's counts (`ring`). One lock protects both.

The parser's thread puts blocks; other threads get, ack and roll back batches. A batch is a tuple of slices, each of which refers to a
block and copies no bytes. A binary search finds the transactions at which a batch begins and ends. Only an open transaction that fills the
whole ring goes to disk (`spill`).
"""

from __future__ import annotations

import bisect
import dataclasses
import threading
import time
from pathlib import Path

from sluice.cdc_engine import limits
from sluice.cdc_engine.binlog.block import end_position
from sluice.cdc_engine.contracts import NOTHING, Batch, Block, StoreMetrics
from sluice.cdc_engine.errors import BatchNotFoundError
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.store.files.mark import Mark
from sluice.cdc_engine.store.files.stored_block import StoredBlock
from sluice.cdc_engine.store.ring import Ring
from sluice.cdc_engine.store.spill import Spill, SpilledBlock
from sluice.cdc_engine.store.timeline import (
    Entry,
    batch_end,
    consumed,
    entry_in_memory,
    slices_between,
    spilled_in,
    with_small_joined,
    without_open,
)


@dataclasses.dataclass(frozen=True)
class HandedOut:
    """The end of a batch that was handed out and has no ack."""

    position: Position
    mark: Mark


class MemoryEventStore:
    """The event store in memory (`ports.EventStore`). The first batch begins at `start`, where the parser starts. With `ddl_isolation`, a
    statement that changes tables is a separate batch.

    Only one thread may put. If another thread calls `drop_open_transaction` or `clear`, the puts of the putting thread raise
    InterruptedError, because they could append the end of a transaction whose beginning was dropped. The putting thread must call
    `drop_open_transaction` before it opens a new connection and puts again.
    """

    def __init__(
        self,
        spill_dir: Path,
        *,
        bytes_max: int = limits.RING_BYTES_MAX,
        events_max: int = limits.RING_EVENTS_MAX,
        start: Position | None = None,
        ddl_isolation: bool = False,
    ) -> None:
        self._isolated = ddl_isolation
        self._ring = Ring(bytes_max=bytes_max, events_max=events_max)
        self._entries: list[Entry] = []
        self._handed_out: list[HandedOut] = []
        self._acked = start
        self._spill = Spill(spill_dir)
        self._changed = threading.Condition(threading.Lock())
        self._putter: threading.Thread | None = None
        self._fenced: threading.Thread | None = None
        self._put_wait_seconds = 0.0

    @property
    def acked_position(self) -> Position | None:
        """The position to which a rollback goes back: the end of the last acked batch or, before the first ack, the store's start
        position.
        """
        with self._changed:
            return self._acked

    @property
    def put_position(self) -> Position | None:
        """The position from which a new connection can continue: the end of the last complete transaction that was put. If the store has
        no complete transaction, `put_position` is `acked_position`.
        """
        with self._changed:
            ending = (entry for entry in reversed(self._entries) if len(entry.ends_events))
            last = next(ending, None)
            return _position(last, len(last.ends_events) - 1) if last else self._acked

    @property
    def oldest_time_us(self) -> int:
        """The commit time of the first transaction without an ack, in µs since 1970; 0 if everything is acked.

        A transaction without row events and table changes counts only if its time is later than the time of the last acked transaction. At
        the beginning of a binlog file, such a transaction has the time of the last commit. This may be long ago, although the lake is not
        behind.
        """
        with self._changed:
            acked, acked_us = self._ring.ack.transactions, self._acked.time_us if self._acked else 0
            first = bisect.bisect_right(self._entries, acked, key=lambda entry: entry.complete.transactions)
            for entry in self._entries[first:]:
                block = entry.content
                if isinstance(block, Block) and block.transaction_count:  # A spilled block ends no transaction.
                    time_us = int(block.transaction_time_us[max(0, acked - entry.start.transactions)])
                    if not entry.empty or time_us > acked_us:
                        return time_us
            return 0

    def metrics(self) -> StoreMetrics:
        with self._changed:
            ring, waited = self._ring, self._put_wait_seconds
        return StoreMetrics(
            fill_bytes=ring.fill_bytes,
            fill_events=ring.fill_events,
            bytes_max=ring.bytes_max,
            events_max=ring.events_max,
            spilled_bytes=ring.spilled_bytes,
            put_sequence=ring.put.events,
            get_sequence=ring.get.events,
            ack_sequence=ring.ack.events,
            waiting_transactions=ring.waiting_transactions,
            put_wait_seconds=waited,
            forgotten_events=ring.forgotten_events,
        )

    def put(self, block: Block) -> None:
        """Appends a block. Waits while the store is full, unless all complete transactions are acked, because then no ack can free space.
        Raises InterruptedError if another thread dropped the open transaction, and StagingError if the block could not be written to disk.
        After an error the store is unchanged.
        """
        if block.changes and (block.event_count or block.transaction_count > 1):
            raise ValueError(
                f"a block of {block.file} has table changes together with row events or several transaction ends"
            )
        with self._changed:
            self._enter()
            self._wait_for_room()
            self._keep(block)
            self._changed.notify_all()

    def get(self, byte_count_max: int, event_count_max: int, timeout_seconds: float = 0.0) -> Batch:
        """Returns the next batch: as many complete transactions as both limits permit, but at least one. Waits up to `timeout_seconds` for
        a complete transaction, and returns an empty batch if none arrives. A batch without row events and table changes has an end and no
        slices.
        """
        with self._changed:
            if not self._changed.wait_for(self._is_ready, timeout_seconds):
                return NOTHING
            self._entries = with_small_joined(self._entries, self._ring.get)
            index, transaction = batch_end(
                self._entries, self._ring.get, byte_count_max, event_count_max, isolated=self._isolated
            )
            entry = self._entries[index]
            end = HandedOut(_position(entry, transaction), entry.mark(transaction))
            batch = self._batch(end)
            self._handed_out.append(end)
            self._ring = self._ring.get_at(end.mark)
            return batch

    def ack(self, end: Position) -> None:
        """Acks the batch that ends at `end`, and all batches before it, and removes their events. An ack at or before the last ack has no
        effect. Raises BatchNotFoundError if no batch that was handed out ends at `end`.
        """
        with self._changed:
            if self._acked is not None and end.order_key <= self._acked.order_key:
                return
            keys = [each.position.order_key for each in self._handed_out]
            if end.order_key not in keys:
                raise BatchNotFoundError(f"no unacknowledged batch ends at {end}: roll back and get the batch again")
            count = keys.index(end.order_key) + 1
            self._acked, mark = self._handed_out[count - 1].position, self._handed_out[count - 1].mark
            del self._handed_out[:count]
            self._free(mark)
            self._changed.notify_all()

    def rollback(self) -> None:
        with self._changed:
            self._handed_out.clear()
            self._ring = self._ring.rolled_back()
            self._changed.notify_all()

    def take_back(self) -> None:
        """Undoes the last get, so that the next get returns the same changes. Batches of the gets before it remain handed out."""
        with self._changed:
            self._handed_out.pop()
            self._ring = self._ring.get_at(self._handed_out[-1].mark if self._handed_out else self._ring.ack)
            self._changed.notify_all()

    def drop_open_transaction(self) -> None:
        with self._changed:
            self._fence()
            self._forget_open()
            self._changed.notify_all()

    def clear(self) -> None:
        with self._changed:
            self._fence()
            self._empty()
            self._changed.notify_all()

    def start_at(self, position: Position) -> None:
        """Removes all blocks. The next batch begins at `position`, where the parser starts again."""
        self.clear()
        with self._changed:
            self._acked = position

    def go_back(self, position: Position) -> bool:
        """Returns whether all changes after a position can still be handed out. Returns False for a position before the last ack, because
        acked blocks are not in memory. Changes nothing.
        """
        with self._changed:
            return self._acked is not None and self._acked.order_key <= position.order_key

    # Callers of the following methods hold the lock.

    def _is_ready(self) -> bool:
        """Returns whether a get can hand out a transaction."""
        return self._ring.waiting_transactions > 0

    def _keep(self, block: Block) -> None:
        self._take(block)

    def _take(self, block: Block, stored: StoredBlock | None = None) -> None:
        """Appends a block to the ring. If the ring is full, and the block has no table changes and no end of a transaction, the block goes
        to disk instead. `stored` is where a file already has the block, or None.
        """
        if self._ring.full and not block.transaction_count and not block.changes:
            self._append_spilled(block, self._spill.spilled(block, stored))
        else:
            self._append(block)

    def _forget_open(self) -> None:
        dropped = [entry for entry in self._entries if entry.start >= self._ring.complete]
        self._entries = without_open(self._entries, self._ring.complete)
        self._ring = self._ring.open_dropped(*spilled_in(dropped))
        self._forget_spilled_if_unused()

    def _empty(self) -> None:
        self._entries.clear()
        self._handed_out.clear()
        self._ring = self._ring.cleared()
        self._forget_spilled_if_unused()

    def _enter(self) -> None:
        me = threading.current_thread()
        if self._fenced is me:
            raise InterruptedError(
                "the block was not put: another thread dropped the open transaction or removed all blocks"
            )
        self._putter = me

    def _fence(self) -> None:
        me = threading.current_thread()
        self._fenced = None if self._putter in (None, me) else self._putter

    def _wait_for_room(self) -> None:
        while not self._room():
            started = time.monotonic()
            self._changed.wait()
            self._put_wait_seconds += time.monotonic() - started
            self._enter()

    def _room(self) -> bool:
        return not self._ring.full or self._ring.only_open_transaction

    def _append(self, block: Block) -> None:
        entry = entry_in_memory(block, self._ring.put, self._ring.complete)
        if entry.empty and self._last_is_replaceable():
            # The last entry only moves the position, and has not been handed out. The new block replaces this entry, so that an idle source
            # does not fill the ring with positions.
            replaced = self._entries.pop()
            entry = entry_in_memory(block, replaced.start, replaced.start)
        self._entries.append(entry)
        self._ring = self._ring.added(entry.end, entry.complete)

    def _last_is_replaceable(self) -> bool:
        if not self._entries or self._ring.put != self._ring.complete:
            return False
        last, before = self._entries[-1], self._entries[-2] if len(self._entries) > 1 else None
        # If the block before `last` ends within a transaction, `last` is the end of that transaction and must stay.
        alone = before is None or before.end == before.complete
        return last.empty and alone and last.start >= self._ring.get

    def _append_spilled(self, block: Block, spilled: SpilledBlock) -> None:
        start = self._ring.put
        end = start.plus(0, block.event_count, block.byte_count)
        self._entries.append(Entry(spilled, block.epoch, start, self._ring.complete, end))
        self._ring = self._ring.spilled(end)

    def _batch(self, end: HandedOut) -> Batch:
        get = self._ring.get
        slices, events = slices_between(self._entries, get, end.mark), end.mark.events - get.events
        return Batch(
            batch_id=0,
            start=self._handed_out[-1].position if self._handed_out else self._acked,
            end=end.position,
            slices=slices,
            isolated=self._isolated and not events and any(each.changes for each in slices),
            event_count=events,
            byte_count=end.mark.bytes - get.bytes,
        )

    def _free(self, mark: Mark) -> None:
        count = consumed(self._entries, mark)
        freed = self._entries[:count]
        del self._entries[:count]
        self._ring = self._ring.acked(mark, *spilled_in(freed))
        self._forget_spilled_if_unused()

    def _forget_spilled_if_unused(self) -> None:
        if not self._ring.spilled_bytes:
            self._spill.remove()


def _position(entry: Entry, transaction: int) -> Position:
    if isinstance(entry.content, SpilledBlock):
        raise TypeError("a spilled block ends no transaction")
    return end_position(entry.content, transaction)
