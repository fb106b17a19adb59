"""Keeps the newest blocks of a stream for several readers. Each reader has its own position in the stream.

The parser's thread puts blocks, and readers read in other threads. The window of the live stream never waits: above its limits it removes
the oldest blocks. If the changes after a reader's position were removed, `read` returns None, and the reader must open its own stream of
the source. The window of a consumer's own stream has one reader, and waits for this reader (`waits`). Windows and the ring share blocks
and do not copy them.

A count (`WindowCount`) is a point in the window: the number of transactions that end before it, and the number of row events before it.
"""

from __future__ import annotations

import bisect
import dataclasses
import threading
import time
from collections.abc import Callable

import numpy as np

from sluice.cdc_engine import limits
from sluice.cdc_engine.binlog.block import end_position, keep_events
from sluice.cdc_engine.contracts import Block
from sluice.cdc_engine.errors import ConsumerStoppedError
from sluice.cdc_engine.gtid import is_mariadb, same_executed
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.store.window.positions import (
    Key,
    WindowBlock,
    WindowCount,
    WindowPosition,
    WindowReading,
    ends_before,
    entries_between,
    following,
    kept,
    key_of,
    last_offset,
    open_after,
    pieces_after,
    position_at,
    transaction_at,
    unseen,
)

EXECUTED_MAX = 256  # The executed sets of this many transaction ends are cached. A further set replaces the oldest one.
# Readers get parts of an open transaction if its row events have at least this many bytes, or at least half of the window's size in bytes.
# Readers get a smaller transaction only after its end.
PART_BYTES_MIN = 16 * limits.MEBIBYTE
# With more blocks than this, the window of the live stream removes the oldest blocks. Blocks without row events use memory that `bytes_max`
# does not count, and an idle source can send many of them.
BLOCKS_MAX = 1 << 13


def _never() -> bool:
    return False


class Window:
    """A window of a stream that begins at `start`. `bytes_max` limits the bytes of row events, but a single block may be larger. With
    `waits`, a put waits for the window's only reader instead of removing blocks that were not read. With `isolated`, a result of
    `read` that has a DDL statement has no other changes.
    """

    def __init__(self, start: Position, *, bytes_max: int, waits: bool = False, isolated: bool = False) -> None:
        self._isolated = isolated
        self._bytes_max, self._waits = bytes_max, waits
        self._blocks: list[WindowBlock] = []
        self._bytes = 0
        self._start = start
        self._base: WindowBlock | None = None  # The last removed block in which a transaction ends.
        self._gone_open: Key | None = None  # Identifies the transaction that was open after the last removed block.
        self._gone_last = 0  # The binlog offset of the last row event that was removed.
        self._tail = WindowCount()  # The count after the newest block.
        self._executed: dict[Key, str] = {}
        self._read = WindowCount()  # With `waits`: how far the reader has read.
        self._changed = threading.Condition()
        self._putter: threading.Thread | None = None
        self._fenced: threading.Thread | None = None  # The thread whose open transaction was dropped by another thread.
        self._closed = False

    # ── the parser's side ──

    def put(self, block: Block) -> None:
        """Appends the part of a block that the window does not have yet. If the stream is read again from an earlier position, its first
        blocks add nothing. With `waits`, first waits until the reader has freed space.

        Raises InterruptedError if the window is closed. Also raises it if another thread has dropped the open transaction (`drop_open`), so
        that no rest of this transaction is appended. After the putting thread has called `drop_open` too, `put` works again.
        """
        with self._changed:
            self._enter()
            while self._waits and self._bytes >= self._bytes_max:
                self._changed.wait()
                self._enter()
            left = unseen(block, self._tail_key)
            if left is None:
                return
            bytes_start = self._blocks[-1].bytes_end if self._blocks else 0
            each = kept(left, self._tail, self._tail_key, self._open, bytes_start)
            self._blocks.append(each)
            self._bytes += each.size_bytes
            self._tail = each.end
            self._evict()
            self._changed.notify_all()

    def drop_open(self) -> None:
        """Drops the open transaction. Called if the connection is lost, because the parser then puts the whole transaction again."""
        with self._changed:
            while self._blocks and not self._blocks[-1].block.transaction_count:
                self._bytes -= self._blocks.pop().size_bytes
            if self._blocks and self._blocks[-1].end != self._blocks[-1].last_end:
                self._drop_open_transaction()
            self._tail = self._blocks[-1].end if self._blocks else self._base_count
            if not self._blocks:
                self._gone_open = None
            me = threading.current_thread()
            self._fenced = None if self._putter in {None, me} else self._putter
            self._changed.notify_all()

    def begin_at(self, position: Position) -> None:
        """Removes all content. The next block that is put begins at `position`."""
        with self._changed:
            self._blocks.clear()
            self._executed.clear()
            self._start, self._base, self._gone_open, self._gone_last = position, None, None, 0
            self._bytes, self._read, self._tail = 0, WindowCount(), WindowCount()
            self._changed.notify_all()

    def close(self) -> None:
        """Closes the window. A `put` that waits, and every later `put`, raises InterruptedError."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # ── the readers' side ──

    def has(self, position: WindowPosition) -> bool:
        """Returns whether the changes after a position can be read from this window, now or when they arrive."""
        with self._changed:
            return self._found(position) is not None

    def read(
        self,
        position: WindowPosition,
        bytes_max: int,
        entries_max: int,
        timeout_seconds: float = 0.0,
        given_up: Callable[[], bool] = _never,
        *,
        full: bool = False,
    ) -> WindowReading | None:
        """Returns the changes after a position as soon as there are any. If no changes arrive within `timeout_seconds`, returns an empty
        reading. Returns None if the position is not in the window. Raises ConsumerStoppedError if the position counts row events
        that the window does not have.

        Calls `given_up` whenever the waiting thread wakes up, and stops waiting if `given_up` returns True. `bytes_max` and `entries_max`
        limit the bytes and entries that are returned, but a single row event or transaction may exceed them. With `full`, waits until the
        changes reach `bytes_max`, `entries_max` or half of the window's size. If the reader waited for more than half of the size, the
        window could remove the changes after the position.
        """
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            while (found := self._found(position)) is not None:
                counted, again = found
                if position.events and not again:
                    self._refuse_other_count(position, counted)
                if self._waits:
                    self._read = counted
                    self._evict()
                    self._changed.notify_all()
                left = deadline - time.monotonic()
                stops = given_up()
                enough = stops or not full or self._has_after(counted, bytes_max, entries_max)
                if enough or left <= 0:
                    until = self._readable_end()
                    pieces, end = pieces_after(
                        self._blocks, counted, bytes_max, entries_max, isolated=self._isolated, until=until
                    )
                    if pieces:
                        return WindowReading(
                            pieces, self._remembered(self._window_position(end)), again, in_time=enough
                        )
                    if left <= 0 or stops:
                        return WindowReading((), position)
                self._changed.wait(left)
            return None

    def wake(self) -> None:
        """Makes waiting readers call `given_up`."""
        with self._changed:
            self._changed.notify_all()

    @property
    def begin(self) -> Position:
        """The earliest position from which the window can be read without a gap. It is the end of a transaction."""
        with self._changed:
            base = self._window_position(self._base_count)
            if self._found(base) is not None:
                return base.position
            ending = next((each for each in self._blocks if each.block.transaction_count), None)
            return base.position if ending is None else end_position(ending.block, 0)

    @property
    def fill_bytes(self) -> int:
        with self._changed:
            return self._bytes

    # ── the caller has the lock ──

    def _enter(self) -> None:
        me = threading.current_thread()
        if self._closed or self._fenced is me:
            raise InterruptedError(
                "the block was not put: another thread dropped the open transaction, or the window is closed"
            )
        self._putter = me

    def _has_after(self, counted: WindowCount, bytes_min: int, entries_min: int) -> bool:
        """Returns whether enough changes follow the point `counted` of the window to reach `bytes_min` or `entries_min`. Also returns True
        if these changes fill half of the window, by bytes or by blocks, because the window may soon remove them. Also returns True if a
        window with `waits` is full, because no further block arrives before the reader reads.
        """
        following = bisect.bisect_right(self._blocks, counted, key=lambda each: each.end)
        if following == len(self._blocks):
            return False
        first, full = self._blocks[following], self._waits and self._bytes >= self._bytes_max
        event = min(first.block.event_count, max(0, counted.events - first.start.events))
        count = self._blocks[-1].bytes_end - first.bytes_start - int(first.bytes_before[event])
        many = len(self._blocks) - following >= BLOCKS_MAX // 2 or entries_between(counted, self._tail) >= entries_min
        return full or many or count >= min(bytes_min, self._bytes_max // 2)

    def _readable_end(self) -> WindowCount | None:
        """Returns the point (`WindowCount`) up to which readers get the content. If a small transaction is open, this is the end of the
        last complete transaction. Otherwise returns None, which means no limit.

        Readers do not get a small open transaction, because the parser puts the transaction again if a ROLLBACK TO undoes some of the
        transaction's rows.
        """
        if self._open is None:
            return None
        ending = next((each for each in reversed(self._blocks) if each.block.transaction_count), None)
        if ending is None:
            open_bytes, ended = self._bytes, self._base_count
        else:
            last = int(ending.block.transaction_events[-1])
            open_bytes, ended = (
                self._blocks[-1].bytes_end - ending.bytes_start - int(ending.bytes_before[last]),
                ending.last_end,
            )
        return ended if open_bytes < min(PART_BYTES_MIN, self._bytes_max // 2) else None

    @property
    def _tail_key(self) -> Key:
        return self._blocks[-1].end_key if self._blocks else self._base_key

    @property
    def _base_count(self) -> WindowCount:
        return self._base.last_end if self._base else WindowCount()

    @property
    def _base_key(self) -> Key:
        return self._base.end_key if self._base else key_of(self._start)

    @property
    def _open(self) -> Key | None:
        return open_after(self._blocks[-1]) if self._blocks else self._gone_open

    def _found(self, position: WindowPosition) -> tuple[WindowCount, bool] | None:
        """Returns the point (`WindowCount`) from which a reader at `position` continues, and whether `position` is inside a transaction
        that the stream has since replaced by another one. If so, the reader continues at the beginning of the other transaction. Returns
        None if `position` is not in the window.
        """
        key = key_of(position.position)
        ended = self._base_count if key == self._base_key else transaction_at(self._blocks, key)
        if ended is None or not same_executed(self._executed_at(key, ended), position.position.gtid_set):
            return None
        again = bool(position.events) and self._begun_after(ended) != position.begun
        counted = ended if again else WindowCount(ended.transactions, ended.events + position.events)
        first = self._blocks[0].start if self._blocks else self._tail
        return (counted, again) if first.events <= counted.events else None

    def _refuse_other_count(self, position: WindowPosition, counted: WindowCount) -> None:
        """Raises ConsumerStoppedError if a position counts more row events than its transaction has, or if the last row event before the
        position has another offset in the window. Without this error, the reader would skip or repeat row events.
        """
        ended = WindowCount(counted.transactions, counted.events - position.events)
        missing = ends_before(self._blocks, ended, counted.events)
        # On MariaDB, the offsets are not compared. MariaDB 11 writes no end positions within a transaction, so the offsets that Sluice
        # computes depend on whether the server sends the SQL texts of statements.
        compared = position.last and not is_mariadb(position.position.gtid_set)
        found = self._last_before(counted) if compared and not missing else None
        if missing or (found is not None and found != position.last):
            raise ConsumerStoppedError(
                f"the committed position of the broker is after row event {position.events} of the transaction that follows "
                f"{position.position}. According to the committed position, this row event has the offset {position.last}; in the "
                f"binlog, the row event {'is missing' if missing else f'has the offset {found}'}. Either the committed position "
                "belongs to another consumer, or another version of Sluice wrote the position. Set another transactional_id "
                "for the broker in conf/; the consumer then continues at its cursor, and repeats messages of this transaction"
            )

    def _last_before(self, counted: WindowCount) -> int | None:
        """Returns the binlog offset of the last row event before the point `counted` of the window, or None if the row event has not
        arrived yet.
        """
        at = bisect.bisect_left(self._blocks, counted.events, key=lambda each: each.end.events)
        if counted.events <= (self._blocks[0].start.events if self._blocks else self._tail.events):
            return self._gone_last
        return last_offset(self._blocks[at], counted.events) if at < len(self._blocks) else None

    def _begun_after(self, ended: WindowCount) -> Key | None:
        """Returns the key that identifies the transaction that begins at the point `ended` of the window, or None if no part of this
        transaction has arrived.
        """
        if self._blocks:
            return following(self._blocks, ended)
        return self._gone_open if ended < self._tail else None

    def _executed_at(self, key: Key, end: WindowCount) -> str:
        """Returns the executed set at the end of a transaction. The set is cached, because readers often need the same set, and computing
        the set takes a pass over the block.
        """
        if key not in self._executed:
            self._remembered(self._window_position(end))
        return self._executed[key]

    def _remembered(self, position: WindowPosition) -> WindowPosition:
        """Caches the executed set of a position that a reader gets, because the reader continues there. Returns the position."""
        while len(self._executed) >= EXECUTED_MAX:
            del self._executed[next(iter(self._executed))]
        self._executed[key_of(position.position)] = position.position.gtid_set
        return position

    def _window_position(self, counted: WindowCount) -> WindowPosition:
        base = self._base_count
        if counted.transactions > base.transactions:
            found = position_at(self._blocks, counted)
        else:
            position = position_at([self._base], base).position if self._base else self._start
            found = WindowPosition(position, counted.events - base.events)
        ended = WindowCount(counted.transactions, counted.events - found.events)
        if not found.events:
            return found
        last = self._last_before(counted) or 0
        return dataclasses.replace(found, begun=self._begun_after(ended), last=last)

    def _evict(self) -> None:
        while self._blocks and self._may_go(self._blocks[0]):
            gone = self._blocks.pop(0)
            self._bytes -= gone.size_bytes
            self._gone_open = open_after(gone)
            if gone.end.events > gone.start.events:
                self._gone_last = last_offset(gone, gone.end.events)
            if gone.block.transaction_count:
                self._base = gone.without_bytes()

    def _may_go(self, oldest: WindowBlock) -> bool:
        if self._waits:
            return oldest.end <= self._read
        return len(self._blocks) > 1 and (self._bytes > self._bytes_max or len(self._blocks) > BLOCKS_MAX)

    def _drop_open_transaction(self) -> None:
        last = self._blocks[-1]
        mask = np.arange(last.block.event_count) < int(last.block.transaction_events[-1])
        key = self._blocks[-2].end_key if len(self._blocks) > 1 else self._base_key
        self._bytes -= last.size_bytes
        self._blocks[-1] = kept(keep_events(last.block, mask), last.start, key, last.open, last.bytes_start)
        self._bytes += self._blocks[-1].size_bytes
