"""Defines positions in a window and the result of a read, and converts between positions and parts of blocks. Pure functions.

A point in a window is a `WindowCount`: how many transactions and captured row events are before this point since the window began. A
`WindowPosition` is the same point in a form that another window or process can use: the end of a transaction, and how many row events
after this end were read.

A position includes its executed set. Two streams that were requested with different GTID sets may leave out different transactions of the
same binlog file, so equal offsets may be different positions. A `Key` is (epoch, file number, offset). A transaction is identified by the
key of its first row event or statement.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Sequence

import numpy as np

from sluice.cdc_engine.binlog.block import end_position, without_first
from sluice.cdc_engine.contracts import Block, Int64s
from sluice.cdc_engine.position import Position, file_number, order_key

Key = tuple[int, int, int]  # (epoch, file number, offset)
FRAME_ENTRIES = 2  # A consumer gets one entry for the beginning of a transaction and one for its end.


@dataclasses.dataclass(frozen=True, order=True)
class WindowCount:
    """A point in the window. `transactions` is the number of transactions that end before this point, and `events` the number of row events
    before it. Both are counted from the beginning of the window.
    """

    transactions: int = 0
    events: int = 0


@dataclasses.dataclass(frozen=True)
class WindowPosition:
    """A position in the stream: after the first `events` captured row events of the transaction that follows `position`.

    `begun` identifies this transaction by its key, because another server may have another transaction at `position`. If `events` is 0,
    `begun` is None. `last` is the binlog offset of the last of these row events, or 0 if the offset is unknown. By this offset, the window
    verifies that it counts the row events in the same way.
    """

    position: Position
    events: int = 0
    begun: Key | None = None
    last: int = 0


@dataclasses.dataclass(frozen=True, eq=False)
class WindowPiece:
    """A part of a block: the row events [first_event, last_event), and the transactions [first_transaction, last_transaction) that end in
    this part.
    """

    block: Block
    first_event: int
    last_event: int
    first_transaction: int
    last_transaction: int


@dataclasses.dataclass(frozen=True, eq=False)
class WindowReading:
    """The result of a read: pieces of the stream in order, or none if nothing was available. The next read begins at `end`.

    `restarted` is True if the reader had read a part of a transaction, and the stream now has another transaction in its place. Then
    `pieces` begin with the first row event of the other transaction. `in_time` is False if a read that waits for a requested amount of
    changes reached its time-out before this amount had arrived.
    """

    pieces: tuple[WindowPiece, ...]
    end: WindowPosition
    restarted: bool = False
    in_time: bool = True


@dataclasses.dataclass(frozen=True, eq=False)
class WindowBlock:
    """A block in a window. `start` is the count before the block. `end_key` is the key at which the last transaction of the block ends. If
    no transaction ends in the block, `end_key` is that of the previous block. `open` identifies the transaction that the block continues,
    or is None if the block begins with a new transaction.

    `bytes_start` is the number of bytes of the window's row events before this block. `bytes_before` has, for each row event of the block,
    the number of bytes of the block's earlier row events, and at the end the number of bytes of all its row events. A statement within a
    transaction counts as one row event, because the positions before and after the statement must differ.
    """

    block: Block
    start: WindowCount
    end_key: Key
    open: Key | None
    bytes_before: Int64s
    bytes_start: int = 0

    @property
    def within(self) -> int:
        return int(not self.block.transaction_count and not self.block.event_count)

    @property
    def end(self) -> WindowCount:
        events = self.start.events + self.block.event_count + self.within
        return WindowCount(self.start.transactions + self.block.transaction_count, events)

    @property
    def last_end(self) -> WindowCount:
        """The count after the last transaction that ends in the block. At least one transaction must end in the block."""
        events = self.start.events + int(self.block.transaction_events[-1])
        return WindowCount(self.start.transactions + self.block.transaction_count, events)

    @property
    def size_bytes(self) -> int:
        return int(self.bytes_before[-1])

    @property
    def bytes_end(self) -> int:
        return self.bytes_start + self.size_bytes

    def without_bytes(self) -> WindowBlock:
        """Returns the block without its buffer, for readers that only need positions."""
        return dataclasses.replace(self, block=dataclasses.replace(self.block, buffer=np.zeros(0, np.uint8)))


def kept(block: Block, start: WindowCount, key: Key, begun: Key | None, bytes_start: int = 0) -> WindowBlock:
    """Returns the WindowBlock of a block. `start` is the window's count before the block. `key` is the key at which the last transaction
    before the block ends. `bytes_start` is the number of bytes of row events before the block. `begun` identifies the transaction that is
    open at `start`.
    """
    sums = np.concatenate((np.zeros(1, np.int64), np.cumsum(block.event_bytes, dtype=np.int64)))
    if block.transaction_count:
        key = (block.epoch, file_number(block.file), int(block.transaction_end[-1]))
    return WindowBlock(block, start, key, begun, sums, bytes_start)


def open_after(each: WindowBlock) -> Key | None:
    """Returns the key that identifies the transaction that is open at the end of a block, or None if none is open."""
    return transaction_after(each, each.last_end if each.block.transaction_count else each.start)


def last_offset(each: WindowBlock, events: int) -> int:
    """Returns the binlog offset of the window's row event with the number `events`, counted from 1. The row event must be in this block. A
    statement within a transaction counts as a row event. For such a statement, returns its offset, or the order key of its first table
    change if `block.statement` is None.
    """
    block, event = each.block, events - each.start.events - 1
    if event < block.event_count:
        return int(block.event_position[event])
    return block.statement.offset if block.statement is not None else block.changes[0].order_key


def ends_before(blocks: Sequence[WindowBlock], ended: WindowCount, events: int) -> bool:
    """Returns whether a reader's position counts more row events of a transaction than the transaction has. Such a position does not fit
    this window. The transaction begins at the count `ended`. `events` is the number, in the whole window, of the last row event that the
    position counts. Returns False if the end of the transaction is not in these blocks.
    """
    at = bisect.bisect_right(blocks, ended.transactions, key=lambda each: each.end.transactions)
    if at == len(blocks):
        return False
    each, transaction = blocks[at], ended.transactions - blocks[at].start.transactions
    return transaction >= 0 and each.start.events + int(each.block.transaction_events[transaction]) < events


def transaction_after(each: WindowBlock, ended: WindowCount) -> Key | None:
    """Returns the key that identifies the transaction that begins at the count `ended`. Returns None if the block has nothing after this
    count.
    """
    block = each.block
    if ended <= each.start and each.open is not None:
        return each.open
    if ended >= each.end:
        return None
    file, event = (block.epoch, file_number(block.file)), max(0, ended.events - each.start.events)
    if event < block.event_count:
        return *file, int(block.event_transaction_offset[event])
    if block.statement is not None:
        return *file, block.statement.offset
    return (*file, block.changes[0].order_key) if block.changes else None


def unseen(block: Block, tail: Key) -> Block | None:
    """Returns the part of a block after `tail`, which is the end of a transaction, or None if the block has nothing after `tail`. A block
    in which no transaction ends is returned as a whole or not at all.
    """
    file = (block.epoch, file_number(block.file))
    if file != tail[:2]:
        return block if file > tail[:2] else None
    if block.transaction_count:
        seen = int(np.searchsorted(block.transaction_end, tail[2], "right"))
        return block if not seen else without_first(block, seen)
    if block.event_count:
        return block if int(block.event_position[0]) >= tail[2] else None
    if block.statement is not None:
        return block if block.statement.offset >= tail[2] else None
    return block if all(change.order_key > order_key(*tail) for change in block.changes) else None


def key_of(position: Position) -> Key:
    """Returns a key by which positions of one source are compared."""
    return position.epoch, file_number(position.file) if position.file else 0, position.offset


def transaction_at(blocks: Sequence[WindowBlock], key: Key) -> WindowCount | None:
    """Returns the count after the transaction that ends exactly at `key`, or None if no transaction ends at `key`."""
    at = bisect.bisect_left(blocks, key, key=lambda each: each.end_key)
    if at == len(blocks) or not blocks[at].block.transaction_count:
        return None
    each = blocks[at]
    found = int(np.searchsorted(each.block.transaction_end, key[2]))
    if key[:2] != each.end_key[:2] or int(each.block.transaction_end[found]) != key[2]:
        return None
    events = each.start.events + int(each.block.transaction_events[found])
    return WindowCount(each.start.transactions + found + 1, events)


def position_at(blocks: Sequence[WindowBlock], counted: WindowCount) -> WindowPosition:
    """Converts the count `counted` to a `WindowPosition`. A transaction must end in these blocks before the count."""
    each = blocks[bisect.bisect_left(blocks, counted.transactions, key=lambda each: each.end.transactions)]
    transaction = counted.transactions - each.start.transactions - 1
    ended = each.start.events + int(each.block.transaction_events[transaction])
    return WindowPosition(end_position(each.block, transaction), counted.events - ended)


def following(blocks: Sequence[WindowBlock], ended: WindowCount) -> Key | None:
    """Returns the key that identifies the transaction that begins at the count `ended`, or None if the blocks have no part of this
    transaction.
    """
    found = (
        transaction_after(each, ended)
        for each in blocks[bisect.bisect_right(blocks, ended, key=lambda each: each.end) :]
    )
    return next((name for name in found if name is not None), None)


def pieces_after(
    blocks: Sequence[WindowBlock],
    begin: WindowCount,
    bytes_max: int,
    entries_max: int,
    *,
    isolated: bool = False,
    until: WindowCount | None = None,
) -> tuple[tuple[WindowPiece, ...], WindowCount]:
    """Returns the pieces of the stream after `begin`, up to the limits, and the count after the pieces. If anything follows `begin`, the
    pieces have at least one row event or transaction, even above the limits. `entries_max` limits the number of entries: one per row event
    and two per transaction.

    The pieces end with the end of a transaction, if a transaction ends within the limits. The pieces also end before a table is renamed:
    if conf/ has other filters or masks for the new name, the consumer must stop before the renamed table's rows. With `isolated`, a
    statement that changes tables is returned alone. `until` is the end of a transaction. Nothing after `until` is returned.
    """
    if until is not None and begin >= until:
        return (), begin
    pieces: list[WindowPiece] = []
    counted, bytes_left, entries_left = begin, bytes_max, entries_max
    # The number of pieces up to the end of the last whole transaction, and the count at this end.
    whole: tuple[int, WindowCount] | None = None
    for each in blocks[bisect.bisect_right(blocks, begin, key=lambda each: each.end) :]:
        if until is not None and each.start >= until:
            break
        alone = isolated and bool(each.block.changes)
        if pieces and (alone or any(change.renamed_from for change in each.block.changes)):
            break
        piece = _within(each, counted, bytes_left, entries_left, first=not pieces)
        if piece is None:
            break
        if until is not None:
            piece = dataclasses.replace(piece, last_event=min(piece.last_event, until.events - each.start.events))
        pieces.append(piece)
        before, counted = (
            counted,
            WindowCount(
                each.start.transactions + piece.last_transaction, each.start.events + piece.last_event + each.within
            ),
        )
        bytes_left -= int(each.bytes_before[piece.last_event] - each.bytes_before[piece.first_event])
        entries_left -= entries_between(before, counted)
        if _ends_with_a_transaction(piece):
            whole = (len(pieces), counted)
        if alone or counted < each.end or min(bytes_left, entries_left) <= 0:
            break
    if whole is not None and whole[1] != counted:
        return tuple(pieces[: whole[0]]), whole[1]
    return tuple(pieces), counted


def entries_between(begin: WindowCount, end: WindowCount) -> int:
    """Returns how many entries a consumer of all tables gets between two counts: one per row event and two per transaction."""
    return end.events - begin.events + FRAME_ENTRIES * (end.transactions - begin.transactions)


def _within(
    each: WindowBlock, counted: WindowCount, bytes_left: int, entries_left: int, *, first: bool
) -> WindowPiece | None:
    """Returns the part of a block from `counted` on that is within the limits: as many whole transactions as possible. If even the next
    transaction exceeds the limits, returns None or, with `first`, a part of this transaction with at least one row event.
    """
    block, ends = each.block, each.block.transaction_events
    begin = min(block.event_count, max(0, counted.events - each.start.events))
    ended_before = max(0, counted.transactions - each.start.transactions)
    fits = int(np.searchsorted(each.bytes_before, each.bytes_before[begin] + bytes_left, "right")) - 1

    def too_much(last: int, ended: int) -> bool:
        return last > fits or last - begin + FRAME_ENTRIES * (ended - ended_before) > entries_left

    last, ended = block.event_count, block.transaction_count
    if too_much(last, ended):
        later = range(ended_before + 1, ended + 1)
        whole = bisect.bisect_left(later, True, key=lambda count: too_much(int(ends[count - 1]), count))
        following_end = int(ends[ended_before]) if ended_before < ended else last
        if whole:
            ended = ended_before + whole
            last = int(ends[ended - 1])
        elif not first:
            return None  # The transaction exceeds the limits; the next read returns it.
        else:
            last = min(following_end, max(begin + 1, min(fits, begin + entries_left - FRAME_ENTRIES)))
            ended = ended_before + int(ended_before < ended and last == following_end)
    return WindowPiece(block, begin, last, ended_before, ended)


def _ends_with_a_transaction(piece: WindowPiece) -> bool:
    last = piece.last_transaction
    return last > piece.first_transaction and int(piece.block.transaction_events[last - 1]) == piece.last_event
