"""Searches the ordered blocks of the store by marks. A mark (`files.mark`) is a point in the store, given by the numbers of transactions,
row events and bytes before this point. Pure functions. Used by `memory_store` under its lock.

All searches are binary: first over the blocks, and then over the transactions of a block. So a search stays fast if the store has many
blocks.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Sequence

import numpy as np

from sluice.cdc_engine.binlog.block import can_follow, join, transaction_bytes
from sluice.cdc_engine.contracts import Block, BlockSlice, Int64s
from sluice.cdc_engine.limits import READ_BUFFER_BYTES
from sluice.cdc_engine.store.files.mark import Mark
from sluice.cdc_engine.store.spill import SpilledBlock, SpilledSlice

# Neighbouring blocks of at most this size are joined. Each block adds about 1 ms to the decoding of a batch, and copying a small block
# takes only about 100 µs.
SMALL_BYTES_MAX = 1 << 20
JOINED_BYTES_MAX = READ_BUFFER_BYTES  # A joined block is at most as large as a read buffer.
NO_TRANSACTIONS = np.zeros(0, np.int64)


@dataclasses.dataclass(frozen=True, eq=False)
class Entry:
    """A block in the store. A mark is a point in the store, given by the numbers of transactions, row events and bytes before this point.
    `start` is the mark before the block, and `end` is the mark after the block's events. `complete` is the mark after the last transaction
    that ends in the block or before it.

    `ends_events` and `ends_bytes` count the row events and bytes of the block up to the end of each of its transactions. No transaction
    ends in a spilled block.
    """

    content: Block | SpilledBlock
    epoch: int
    start: Mark
    complete: Mark
    end: Mark
    ends_events: Int64s = dataclasses.field(default_factory=lambda: NO_TRANSACTIONS)
    ends_bytes: Int64s = dataclasses.field(default_factory=lambda: NO_TRANSACTIONS)

    def mark(self, transaction: int) -> Mark:
        """Returns the mark after a transaction, by the transaction's index in the block."""
        return self.start.plus(transaction + 1, int(self.ends_events[transaction]), int(self.ends_bytes[transaction]))

    @property
    def empty(self) -> bool:
        """Whether the block has neither row events nor table changes, so that the block only moves the position."""
        return isinstance(self.content, Block) and not self.content.event_count and not self.content.changes

    def stands_alone(self, *, isolated: bool) -> bool:
        """Returns whether the block must be a separate batch. This is true if the block renames a table, because later rows of the table
        belong to another table of the lake. With `isolated`, it is also true if the block is a statement that changes tables.
        """
        if not isinstance(self.content, Block):
            return False
        ddl = bool(self.content.changes) and self.content.transaction_count > 0
        return self.content.stands_alone or (isolated and ddl)

    @property
    def small(self) -> bool:
        """Whether the block may be joined with a neighbour: it is in memory, and small. False if the block's open transaction was dropped,
        because the arrays of the block still contain the dropped transaction.
        """
        if isinstance(self.content, SpilledBlock) or self.content.buffer.nbytes > SMALL_BYTES_MAX:
            return False
        return self.end.events - self.start.events == self.content.event_count

    def slice(self, first: int, last: int) -> BlockSlice:
        """Returns a slice with the row events [first, last), counted from the beginning of the store."""
        first, last = first - self.start.events, last - self.start.events
        if isinstance(self.content, SpilledBlock):
            return SpilledSlice(self.content, first, last)
        return BlockSlice(self.content, first, min(last, self.content.event_count))


def entry_in_memory(block: Block, start: Mark, complete: Mark) -> Entry:
    """Returns the entry of a block. `complete` is the end of the last complete transaction before the block.

    A block of table changes in which no transaction ends counts as one row event, because the marks before and after it must differ.
    """
    within = bool(block.changes) and not block.transaction_count
    end = start.plus(block.transaction_count, block.event_count + within, block.byte_count)
    entry = Entry(block, block.epoch, start, complete, end, block.transaction_events, transaction_bytes(block))
    if not block.transaction_count:
        return entry
    return dataclasses.replace(entry, complete=entry.mark(block.transaction_count - 1))


def with_small_joined(entries: Sequence[Entry], get: Mark) -> list[Entry]:
    """Returns the entries, with small neighbours after the mark `get` joined into one entry.

    A live source sends blocks with a few transactions each, and each block adds a fixed cost to the decoding of a batch.
    """
    first = bisect.bisect_left(entries, get.transactions, key=lambda entry: entry.start.transactions)
    joined, run = list(entries[:first]), list[Entry]()
    for entry in entries[first:]:
        if run and not _continues(run, entry):
            joined.append(_joined(run))
            run = []
        run.append(entry)
    return [*joined, _joined(run)] if run else joined


def _continues(run: Sequence[Entry], entry: Entry) -> bool:
    last = run[-1]
    if not (isinstance(last.content, Block) and isinstance(entry.content, Block)):
        return False
    small = last.small and entry.small and entry.end.bytes - run[0].start.bytes <= JOINED_BYTES_MAX
    return small and can_follow(entry.content, last.content)


def _joined(run: Sequence[Entry]) -> Entry:
    blocks = [entry.content for entry in run if isinstance(entry.content, Block)]
    if len(run) == 1:
        return run[0]
    return entry_in_memory(join(blocks), run[0].start, run[0].complete)


def batch_end(
    entries: Sequence[Entry], get: Mark, byte_count_max: int, event_count_max: int, *, isolated: bool = False
) -> tuple[int, int]:
    """Returns where the next batch ends: the index of an entry, and the index of a transaction in this entry. The batch ends with the last
    transaction within both limits. If the first transaction exceeds a limit, the batch ends with this transaction.

    At least one complete transaction must follow `get`. A batch never spans two epochs. An entry for which `stands_alone` is True is a
    separate batch.
    """
    first = bisect.bisect_right(entries, get.transactions, key=lambda entry: entry.complete.transactions)
    bytes_limit, events_limit = get.bytes + byte_count_max, get.events + event_count_max
    epoch_end = bisect.bisect_right(entries, entries[first].epoch, key=lambda entry: entry.epoch)
    whole = min(
        epoch_end,
        bisect.bisect_right(entries, bytes_limit, key=lambda entry: entry.complete.bytes),
        bisect.bisect_right(entries, events_limit, key=lambda entry: entry.complete.events),
    )
    transactions = entries[whole - 1].complete.transactions if whole else 0
    if whole < epoch_end:
        entry = entries[whole]
        fits_bytes = np.searchsorted(entry.ends_bytes, bytes_limit - entry.start.bytes, "right")
        fits_events = np.searchsorted(entry.ends_events, events_limit - entry.start.events, "right")
        transactions = max(transactions, entry.start.transactions + int(min(fits_bytes, fits_events)))
    transactions = max(transactions, get.transactions + 1)
    index = bisect.bisect_left(entries, transactions, key=lambda entry: entry.complete.transactions)
    indices = range(first, index + 1)
    alone = next((each for each in indices if entries[each].stands_alone(isolated=isolated)), None)
    if alone is not None:
        transactions = max(entries[alone].start.transactions, get.transactions + 1)
        index = bisect.bisect_left(entries, transactions, key=lambda entry: entry.complete.transactions)
    return index, transactions - entries[index].start.transactions - 1


def slices_between(entries: Sequence[Entry], get: Mark, end: Mark) -> tuple[BlockSlice, ...]:
    """Returns the events between the marks `get` and `end`, as one slice per block. A block with neither row events nor table changes has
    no slice.
    """
    slices = []
    for entry in entries[consumed(entries, get) :]:
        if (entry.start.transactions, entry.start.events) >= (end.transactions, end.events):
            break
        first, last = max(get.events, entry.start.events), min(end.events, entry.end.events)
        if first < last or (isinstance(entry.content, Block) and entry.content.changes):
            slices.append(entry.slice(first, last))
    return tuple(slices)


def consumed(entries: Sequence[Entry], mark: Mark) -> int:
    """Returns how many entries are completely before a mark."""
    end = (mark.transactions, mark.events)
    return bisect.bisect_right(entries, end, key=lambda entry: (entry.end.transactions, entry.end.events))


def without_open(entries: Sequence[Entry], complete: Mark) -> list[Entry]:
    """Returns the entries up to `complete`, the last end of a transaction. An entry that continues after this end is shortened."""
    kept = list(entries)
    while kept and kept[-1].start >= complete:
        kept.pop()
    if kept and kept[-1].end > complete:
        kept[-1] = dataclasses.replace(kept[-1], end=complete)
    return kept


def spilled_in(entries: Sequence[Entry]) -> tuple[int, int]:
    """Returns how many row events and bytes of the entries are spilled."""
    spilled = [entry for entry in entries if isinstance(entry.content, SpilledBlock)]
    events = sum(entry.end.events - entry.start.events for entry in spilled)
    return events, sum(entry.end.bytes - entry.start.bytes for entry in spilled)
