"""Stores blocks in files (an `EventLog`) and in a ring in memory. When the ring has space, it is filled from the log, block by block.

`FileEventStore` and `MixedEventStore` decide which blocks go into the log. The base class `MemoryEventStore` implements get, ack and
rollback, and its lock also protects the log. If no earlier block waits in the log and the ring has space, a new block goes directly into
the ring. Other blocks are read back from the log later.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from sluice.cdc_engine import limits
from sluice.cdc_engine.contracts import Block, StoreMetrics
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.store.files.log import EventLog
from sluice.cdc_engine.store.files.reader import DroppedTransaction, LogReader
from sluice.cdc_engine.store.memory_store import MemoryEventStore


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoreSizes:
    """The limits of a store with files: the maximum bytes of its files, and the maximum bytes and events of its ring."""

    files_bytes_max: int
    bytes_max: int = limits.RING_BYTES_MAX
    events_max: int = limits.RING_EVENTS_MAX


class BackedEventStore(MemoryEventStore):
    """The base class of the stores with files. `log` must be ready for appends: the caller has called its `begin`, or its `open` and then
    `go_on`. `reader` is at the first block of the log that the ring does not have.
    """

    def __init__(
        self,
        spill_dir: Path,
        log: EventLog,
        reader: LogReader,
        *,
        sizes: StoreSizes,
        start: Position | None = None,
        ddl_isolation: bool = False,
    ) -> None:
        super().__init__(
            spill_dir, bytes_max=sizes.bytes_max, events_max=sizes.events_max, start=start, ddl_isolation=ddl_isolation
        )
        self._log, self._reader, self._files_bytes_max = log, reader, sizes.files_bytes_max

    @property
    def oldest_time_us(self) -> int:
        with self._changed:
            self._refill(blocks_max=1)
        return super().oldest_time_us

    def metrics(self) -> StoreMetrics:
        """Returns the store's metrics. `spilled_bytes`, `put_sequence` and `waiting_transactions` include the blocks that are in the log
        and not in the ring yet.
        """
        with self._changed:
            put, read = self._log.mark, self._reader.log_offset.mark
        metrics = super().metrics()
        return dataclasses.replace(
            metrics,
            spilled_bytes=metrics.spilled_bytes + max(0, put.bytes - read.bytes),
            put_sequence=metrics.put_sequence + max(0, put.events - read.events),
            waiting_transactions=metrics.waiting_transactions + max(0, put.transactions - read.transactions),
        )

    def drop_open_transaction(self) -> None:
        with self._changed:
            self._fence()
            self._drop()
            self._changed.notify_all()

    # Callers of the following methods hold the lock.

    def _is_ready(self) -> bool:
        self._refill()
        return super()._is_ready()

    def _drop(self) -> None:
        """Drops the open transaction. If a part of the transaction is only in the log, the transaction is dropped from the ring when the
        log's reader reaches the record of the drop.
        """
        at_end = self._reader.at_end
        self._log.drop_open()
        if at_end:
            self._forget_open()

    @property
    def _ring_has_room(self) -> bool:
        return not self._ring.full or self._ring.only_open_transaction

    def _refill(self, blocks_max: int = limits.RING_EVENTS_MAX) -> None:
        for _ in range(blocks_max):
            if not self._ring_has_room or (found := self._reader.next()) is None:
                return
            if isinstance(found, DroppedTransaction):
                self._forget_open()
                continue
            self._take(found, self._reader.stored)

    def _store(self, block: Block) -> None:
        """Appends a block to the log. If no earlier block waits in the log and the ring has space, the ring gets the block too. After a
        StoreFullError the store is unchanged.
        """
        straight = self._reader.at_end and self._ring_has_room
        dropped = self._log.has_dropped
        stored = self._log.append(block)
        if straight:
            if dropped:
                self._forget_open()
            self._take(block, stored)
            self._reader.go_to(self._log.end_offset)
