"""Reads the blocks of an `EventLog` in order, for the store's ring and for consumers that are behind. Only one thread at a time may use a
reader.

The files may contain blocks of a transaction that was dropped because the connection was lost. After these blocks the reader returns
DROPPED, and the caller must drop the open transaction.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import os
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from sluice.cdc_engine.binlog.block import end_position, without_first
from sluice.cdc_engine.contracts import Block
from sluice.cdc_engine.position import Position, file_number
from sluice.cdc_engine.store.files.encoding import NO_NAMES, Counts, Names, names_of
from sluice.cdc_engine.store.files.mark import Mark
from sluice.cdc_engine.store.files.record import (
    BLOCK,
    DROP,
    NAMES,
    RecordHeader,
    TornError,
    Where,
    read_head,
    read_text,
    verify,
)
from sluice.cdc_engine.store.files.segment import Segment, SegmentFile
from sluice.cdc_engine.store.files.stored_block import UNREADABLE, StoredBlock, damaged, read_block
from sluice.cdc_engine.store.window.positions import Key


class DroppedTransaction(enum.Enum):
    """The type of DROPPED, which `LogReader.next` returns instead of a block at a point where the open transaction was dropped."""

    DROPPED = "dropped"


DROPPED = DroppedTransaction.DROPPED


class Segments(Protocol):
    """The segments of a log, in which a reader moves forward."""

    def after(self, segment: Segment) -> Segment | None:
        """Returns the segment that follows `segment`, or None if there is none yet. Raises FileNotFoundError if the following segment was
        removed.
        """


@dataclasses.dataclass
class LogOffset:
    """An offset between two records of the log. A `Mark` counts the transactions, row events and bytes that the store got before a point.
    `mark` counts those before the offset, and `complete` those before the last end of a transaction that precedes the offset. `seed` is the
    checksum of the record before the offset. `names` are the table versions and GTID sources to which the next block refers.
    """

    segment: Segment
    offset: int
    seed: int
    mark: Mark
    complete: Mark
    names: Names = NO_NAMES
    # The part of the block directly before this offset that the reader has not returned yet.
    pending: Block | None = None

    @classmethod
    def beginning(cls, segment: Segment) -> LogOffset:
        return cls(segment, segment.first, segment.seed, segment.mark, segment.mark)

    def passed(self, record: dict[str, Any], head: RecordHeader) -> LogOffset:
        """Returns the offset after a block whose JSON record was read, but whose arrays are skipped."""
        complete = _plus(self.mark, Mark(*record["whole"])) if record["sizes"][2] else self.complete
        mark = _plus(self.mark, Mark(*record["all"]))
        return dataclasses.replace(self, mark=mark, complete=complete, pending=None).behind(head)

    def behind(self, head: RecordHeader) -> LogOffset:
        return dataclasses.replace(self, offset=self.offset + head.size, seed=head.checksum)


class LogReader:
    """Reads the blocks of a log from `log_offset` on, and verifies the checksum of each returned block. `stored` is where the last returned
    block is stored, or None if `next` returned only the last part of a stored block.
    """

    def __init__(self, segments: Segments, log_offset: LogOffset) -> None:
        self._segments, self.log_offset = segments, log_offset
        self.stored: StoredBlock | None = None
        self._file: SegmentFile | None = None

    @property
    def at_end(self) -> bool:
        """Whether no record follows the reader now."""
        if self.log_offset.pending is not None:
            return False
        # Asks for the next segment before it compares the size, because a segment no longer grows once the next segment exists. In the
        # other order, a block could be appended between the two steps.
        following = self._segments.after(self.log_offset.segment)
        return following is None and self.log_offset.offset >= self.log_offset.segment.size

    def go_to(self, log_offset: LogOffset) -> None:
        if log_offset.segment is not self.log_offset.segment:
            # The attributes `_file` and `stored` keep the old segment's file open, and an open file uses disk space even after it is
            # removed.
            self._file = self.stored = None
        self.log_offset = log_offset

    def next(self) -> Block | DroppedTransaction | None:
        """Returns the next block, or None at the end of the log. Returns DROPPED where an open transaction was dropped, and before the
        first block of each further segment, because a transaction never continues in another segment. Raises StoreDamagedError if the
        record is damaged, and FileNotFoundError if the segment was removed.
        """
        if self.log_offset.pending is not None:
            block, self.log_offset = self.log_offset.pending, dataclasses.replace(self.log_offset, pending=None)
            self.stored = None
            self._count(block)
            return block
        while True:
            following = self._segments.after(self.log_offset.segment)
            if self.log_offset.offset < self.log_offset.segment.size:
                found = self._record()
                if found is not None:
                    return found
            elif following is not None:
                self.go_to(LogOffset.beginning(following))
                return DROPPED
            else:
                return None

    def find(self, key: Key) -> Position:
        """Moves the reader within the current segment to the last end of a transaction that is not after `key`, and returns the position of
        this end.
        """
        last: LogOffset | None = None  # The offset of the last block whose last transaction ends at or before `key`.
        for at, record in self._blocks(self.log_offset):
            end = (record["epoch"], file_number(record["file"]), record["end"])
            if record["end"] < 0:
                continue
            if end > key:
                self.go_to(at)
                return self._within(key, last)
            last = at
        return self._tail_of(last) if last is not None else self._from_start()

    # ── one record ──

    def _record(self) -> Block | DroppedTransaction | None:
        at, file = self.log_offset, self._open_file(self.log_offset)
        where = Where(file.descriptor, at.offset, at.seed)
        try:
            head = read_head(where, at.segment.size)
            if head.kind == BLOCK:
                block = read_block(where, head, at.names)
                self._count(block)
                self.log_offset = self.log_offset.behind(head)
                self.stored = StoredBlock(file, where, self.log_offset.offset, at.names)
                return block
            record, _ = read_text(where, head)
            verify(where, head)
        except UNREADABLE as error:
            raise damaged(at.segment.path, at.offset, error) from error
        self.log_offset = at.behind(head)
        if head.kind == NAMES:
            self.log_offset.names = names_of(record, at.names)
            return None
        if head.kind == DROP:
            self.log_offset.mark = self.log_offset.complete
            return DROPPED
        raise damaged(at.segment.path, at.offset, TornError(f"the record has the unknown kind {head.kind}"))

    def _count(self, block: Block) -> None:
        counts, at = Counts.of(block), self.log_offset
        complete = _plus(at.mark, counts.whole) if block.transaction_count else at.complete
        self.log_offset = dataclasses.replace(at, mark=_plus(at.mark, counts.all), complete=complete)

    def _open_file(self, at: LogOffset) -> SegmentFile:
        if self._file is None:
            self._file = SegmentFile(at.segment.path, os.O_RDONLY)
        return self._file

    # ── the search ──

    def _blocks(self, log_offset: LogOffset) -> Iterator[tuple[LogOffset, dict[str, Any]]]:
        """Yields the offset and the JSON record of each block in the segment, from `log_offset` on. Does not verify checksums."""
        at = log_offset
        while at.offset < at.segment.size:
            try:
                where = Where(self._open_file(at).descriptor, at.offset, at.seed)
                head = read_head(where, at.segment.size)
                record, _ = read_text(where, head)
                if head.kind == BLOCK:
                    yield at, record
                    at = at.passed(record, head)
                    continue
                at = at.behind(head)
                if head.kind == NAMES:
                    at.names = names_of(record, at.names)
                elif head.kind == DROP:
                    at.mark = at.complete
            except UNREADABLE as error:
                raise damaged(at.segment.path, at.offset, error) from error

    def _within(self, key: Key, last: LogOffset | None) -> Position:
        """Moves the reader to the last end of a transaction that is not after `key`, and returns the position of this end. The end is in
        the reader's next block or, if all transactions of this block end after `key`, in the block at the offset `last`. If there is no
        such block (`last` is None), the end is the segment's beginning.
        """
        before = copy.copy(self.log_offset)
        block = self._record()
        if not isinstance(block, Block):
            raise damaged(before.segment.path, before.offset, TornError("no block begins there"))
        ended = 0
        if (block.epoch, file_number(block.file)) == key[:2]:
            ended = int(np.searchsorted(block.transaction_end, key[2], "right"))
        if not ended:
            return self._tail_of(last) if last is not None else self._from_start()
        rest = without_first(block, ended)
        counts = Counts.of(rest).all if rest is not None else Mark()
        end = _minus(self.log_offset.mark, counts)
        self.log_offset = dataclasses.replace(self.log_offset, mark=end, complete=end, pending=rest)
        return end_position(block, ended - 1)

    def _tail_of(self, last: LogOffset) -> Position:
        """Moves the reader to the end of the last transaction in the block at the offset `last`, and returns the position of this end."""
        self.go_to(copy.copy(last))
        block = self._record()
        if not isinstance(block, Block):
            raise damaged(last.segment.path, last.offset, TornError("no block begins there"))
        end = self.log_offset.complete
        rest = without_first(block, block.transaction_count)
        self.log_offset = dataclasses.replace(self.log_offset, mark=end, complete=end, pending=rest)
        return end_position(block, block.transaction_count - 1)

    def _from_start(self) -> Position:
        self.go_to(LogOffset.beginning(self.log_offset.segment))
        return self.log_offset.segment.start


def _plus(mark: Mark, more: Mark) -> Mark:
    return mark.plus(more.transactions, more.events, more.bytes)


def _minus(mark: Mark, less: Mark) -> Mark:
    return mark.plus(-less.transactions, -less.events, -less.bytes)
