"""Builds blocks for the tests of sink, store and server. The bytes of a row event contain its number, so that sequences of events can be
compared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from sluice.cdc_engine.contracts import FRAME, Batch, Block, TableChange, TableVersion

SERVER = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
ORDERS = TableVersion(database="shop", table="orders", columns=(), key=(), version="a")
AUDIT = TableVersion(database="shop", table="audit", columns=(), key=(), version="b")
SECOND_US = 1_000_000
END = 16  # The bytes that the end of a transaction takes. Two order keys differ by at least this much.
GAP = 3  # The number of bytes of other events before each row event.


@dataclasses.dataclass
class Source:
    """Generates numbered row events. An event's bytes are its number, in 8 bytes, and padding up to `size`.

    An offset depends only on the events and transactions before it. If a stream is read again with other block boundaries, its offsets are
    the same. `begun` is the start offset of the open transaction.
    """

    file: str = "mysql-bin.000001"
    epoch: int = 1
    offset: int = 4
    number: int = 0
    transaction: int = 0
    time_us: int = 0
    begun: int | None = None
    gtid_sources: list[str] = dataclasses.field(default_factory=lambda: [SERVER])
    tables: list[TableVersion] = dataclasses.field(default_factory=lambda: [ORDERS, AUDIT])

    def block(
        self,
        transactions: Sequence[int],
        open_events: int = 0,
        *,
        size: int = 16,
        table: int | Sequence[int] = 0,
        changes: tuple[TableChange, ...] = (),
    ) -> Block:
        """Returns the next block. For each transaction that ends in the block, `transactions` has the number of its row events in this
        block. `open_events` more events follow the last end.
        """
        count = sum(transactions) + open_events
        numbers = np.arange(self.number, self.number + count, dtype=np.int64)
        rows = np.full((count, GAP + size), 0xEE, np.uint8)
        rows[:, GAP : GAP + 8] = numbers.view(np.uint8).reshape(count, 8)
        offsets = GAP + np.arange(count, dtype=np.int64) * (GAP + size)
        ends = np.cumsum(np.asarray(transactions, np.int64), dtype=np.int64)
        before = self.transaction
        # For each event, the index of its transaction in the block
        transaction = np.searchsorted(ends, np.arange(count), "right")
        position = self.offset + offsets + END * transaction
        first = np.searchsorted(transaction, transaction)
        begins = position[first] if self.begun is None else np.where(transaction == 0, self.begun, position[first])
        block = Block(
            epoch=self.epoch,
            file=self.file,
            server_uuid=SERVER,
            buffer=rows.reshape(-1),
            tables=self.tables,
            event_offset=offsets,
            event_length=np.full(count, size, np.int64),
            event_kind=np.ones(count, np.int8),
            event_version=np.full(count, 2, np.int8),
            event_table=np.broadcast_to(np.asarray(table, np.int32), count).copy(),
            event_position=position,
            event_time_us=np.full(count, self.time_us, np.int64),
            event_transaction_offset=begins,
            transaction_events=ends,
            transaction_end=self.offset + ends * (GAP + size) + END * (1 + np.arange(len(ends))),
            transaction_time_us=np.full(len(ends), self.time_us, np.int64),
            transaction_source=np.zeros(len(ends), np.int32),
            transaction_number=before + 1 + np.arange(len(ends), dtype=np.int64),
            gtid_sources=self.gtid_sources,
            start_gtid_set=gtid_set(before),
            changes=changes,
            transaction_frame=np.zeros(len(ends), FRAME),
        )
        self.begun = int(begins[-1]) if open_events else self.begun if not len(ends) else None
        self.number += count
        self.transaction += len(ends)
        self.offset += count * (GAP + size) + END * len(ends)
        return block


def gtid_set(last: int) -> str:
    """Returns the executed set of the first `last` transactions."""
    return "" if last == 0 else f"{SERVER}:1" if last == 1 else f"{SERVER}:1-{last}"


def numbers_of(block: Block, first: int = 0, last: int | None = None) -> list[int]:
    """Returns the numbers in the bytes of the block's row events [first, last)."""
    offsets = block.event_offset[first:last]
    return [int(block.buffer[offset : offset + 8].view(np.int64)[0]) for offset in offsets]


def numbers_in(batch: Batch) -> list[int]:
    """Returns the numbers of all row events of a batch, in order."""
    return [number for each in batch.slices for number in numbers_of(each.block, each.first_event, each.last_event)]
