"""Manages the event files of one destination as one log. The parser's thread appends blocks, under the store's lock. Any number of readers
may read.

If the process crashes, no appended block is lost. A segment is synced when the next segment begins, and at least every SYNC_SECONDS while
blocks are put. So a power failure can lose the blocks of the last second, which the engine reads from the source again. Each start of the
engine begins a new segment, so that nothing is written after an incomplete record.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from pathlib import Path

import numpy as np
import structlog

from sluice.cdc_engine.binlog.block import end_position
from sluice.cdc_engine.contracts import Block
from sluice.cdc_engine.durable_files import sync
from sluice.cdc_engine.errors import StoreDamagedError
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.store.files.encoding import Counts, Names, names_record, text_of
from sluice.cdc_engine.store.files.forget import GONE, forget_events, store_full
from sluice.cdc_engine.store.files.mark import Mark
from sluice.cdc_engine.store.files.reader import DROPPED, LogOffset, LogReader
from sluice.cdc_engine.store.files.record import DROP, NAMES, RecordHeader, TornError, Where, write_record
from sluice.cdc_engine.store.files.segment import (
    Segment,
    SegmentFile,
    make_segment,
    numbers_in,
    path_of,
    read_segment,
)
from sluice.cdc_engine.store.files.stored_block import StoredBlock, write_block
from sluice.cdc_engine.store.window.positions import Key, key_of

SYNC_SECONDS = 1.0

log = structlog.get_logger()


class EventLog:
    """The log of one destination's blocks. Each segment records `ledger_id` and `filters`, a digest of the settings that select tables.
    When a segment has reached `segment_bytes`, the next segment begins after the current transaction.
    """

    def __init__(self, directory: Path, *, ledger_id: str, filters: str, segment_bytes: int) -> None:
        self.directory, self._ledger_id, self._filters = directory, ledger_id, filters
        self._segment_bytes = segment_bytes
        self._segments: tuple[Segment, ...] = ()
        self._file: SegmentFile | None = None
        self._log_offset: LogOffset | None = None  # Where the next record is written.
        self._last: Block | None = None  # The last block that ends a transaction, without its buffer.
        self._names: tuple[object, int, object, int] = (None, 0, None, 0)
        self._drops, self._synced_at, self._unsynced = False, time.monotonic(), False

    def begin(self, start: Position) -> None:
        """Removes all records, so that the next append begins at `start`. After a crash, either all old records still exist or none. Raises
        StoreFullError if the files cannot be replaced.
        """
        try:
            forget_events(self.directory.parent, self.directory.name)
            # Skips one segment number, so that a reader of the old segments does not continue in the new segment.
            number = self._segments[-1].number + 2 if self._segments else 1
            self._segments, self._last, self._drops = (), None, False
            self._roll(start, Mark(), number, 0)
        except OSError as error:
            raise store_full(self.directory, error) from error

    def open(self) -> bool:
        """Opens the files that the last process of the engine left. Returns whether there are any files. If the end of the files is
        incomplete, ignores the incomplete part and logs a warning. Call `go_on` before the first append.

        Raises StoreDamagedError if a file cannot be read, and StoreFullError after an I/O error.
        """
        shutil.rmtree(self.directory.with_name(GONE), ignore_errors=True)
        try:
            found = _whole_segments(self.directory)
            if not found:
                return False
            self._segments = tuple(found)
            self._take_up(found[-1])
        except OSError as error:
            raise store_full(self.directory, error) from error
        return True

    def go_on(self) -> None:
        """Begins a new segment after the segments that `open` found, so that blocks can be appended to the log. Raises StoreFullError."""
        newest, at = self._segments[-1], self._at
        try:
            if newest.size > newest.first:
                self._roll(self.end, at.complete, newest.number + 1, newest.size)
            else:
                newest.path.unlink()
                self._segments = self._segments[:-1]
                self._roll(newest.start, newest.mark, newest.number, newest.before_bytes)
        except OSError as error:
            raise store_full(self.directory, error) from error

    def append(self, block: Block) -> StoredBlock:
        """Appends a block, and returns where the block is stored. After a StoreFullError the log is unchanged, because the next append
        overwrites the incomplete record.
        """
        at, segment = self._at, self._at.segment
        try:
            if self._drops:
                self._passed(write_record(self._where[1], DROP, b"", ()))
                self._log_offset = dataclasses.replace(self._at, mark=self._at.complete)
                self._drops = False
            if segment.size - segment.first >= self._segment_bytes and at.mark == at.complete:
                self.sync()
                self._roll(self.end, at.complete, segment.number + 1, segment.size)
            self._append_names(block)
            file, where = self._where
            self._passed(write_block(where, block))
        except OSError as error:
            raise store_full(self.directory, error) from error
        counts, at = Counts.of(block), self._at
        mark = at.mark.plus(*dataclasses.astuple(counts.all))
        complete = at.mark.plus(*dataclasses.astuple(counts.whole)) if block.transaction_count else at.complete
        self._log_offset = dataclasses.replace(at, mark=mark, complete=complete)
        if block.transaction_count:
            self._last = dataclasses.replace(block, buffer=np.zeros(0, np.uint8))
        return StoredBlock(file, where, self._at.offset, self._at.names)

    def drop_open(self) -> None:
        """Drops the open transaction. The next append first writes a record of the drop. If the process crashes before the next append, no
        such record is needed, because the next process ignores an open transaction at the end of the files.
        """
        self._drops = self._drops or self._at.mark != self._at.complete

    def sync(self) -> None:
        """Syncs the appended records to disk. Raises OSError."""
        file, self._unsynced, self._synced_at = self._file, False, time.monotonic()
        if file is None:
            return
        try:
            os.fdatasync(file.descriptor)
        except OSError:
            self._unsynced = True
            raise

    def sync_if_due(self) -> None:
        """Syncs the appended records if the segment is full, or if the last sync was SYNC_SECONDS ago. Any thread may call this method,
        without the store's lock. Raises StoreFullError if the sync fails.
        """
        # A full segment is synced now, because the next block begins a new segment, and would otherwise wait for the sync of the full
        # segment.
        spent = self._at.segment.size >= self._segment_bytes
        if self._unsynced and (spent or time.monotonic() - self._synced_at >= SYNC_SECONDS):
            try:
                self.sync()
            except OSError as error:
                raise store_full(self.directory, error) from error

    def trim(self, acked: Key, bytes_max: int) -> None:
        """Removes the oldest segments until the files have at most `bytes_max` bytes. Keeps segments with blocks after the key `acked`, and
        the newest segment, even if the files then have more bytes.
        """
        before, segments = len(self._segments), list(self._segments)
        while len(segments) > 1 and segments[1].key <= acked and sum(each.size for each in segments) > bytes_max:
            segments.pop(0).path.unlink(missing_ok=True)
        if len(segments) < before:
            self._segments = tuple(segments)
            sync(self.directory)

    def trim_read(self, reader: LogReader) -> bool:
        """Removes the segments that a reader has read to their ends. Returns whether a segment was removed."""
        kept = tuple(each for each in self._segments if each.number >= reader.log_offset.segment.number)
        gone = self._segments[: len(self._segments) - len(kept)]
        for each in gone:
            each.path.unlink(missing_ok=True)
        self._segments = kept
        return bool(gone)

    @property
    def has_dropped(self) -> bool:
        """Whether the open transaction was dropped and the log has no record of the drop yet. The next append writes this record."""
        return self._drops

    @property
    def is_empty(self) -> bool:
        """Whether the log has no records."""
        return len(self._segments) == 1 and self._segments[0].size == self._segments[0].first

    @property
    def size_bytes(self) -> int:
        """The size of all files in bytes."""
        return sum(each.size for each in self._segments)

    @property
    def start(self) -> Position:
        """The position at which the oldest segment begins."""
        return self._segments[0].start

    @property
    def end(self) -> Position:
        """The end of the last complete transaction, or the position at which the log begins if it has no complete transaction."""
        if self._last is None:
            return self._segments[-1].start
        return end_position(self._last, self._last.transaction_count - 1)

    @property
    def identity(self) -> tuple[str, str]:
        """The ledger id and the filters that the newest segment records."""
        return self._segments[-1].ledger_id, self._segments[-1].filters

    @property
    def mark(self) -> Mark:
        """The mark (counts of transactions, events and bytes) after all appended blocks. If the open transaction was dropped, this is
        the mark after the last complete transaction.
        """
        return self._at.complete if self._drops else self._at.mark

    def after(self, segment: Segment) -> Segment | None:
        """Returns the segment that follows `segment`, or None if there is none yet. Raises FileNotFoundError if the following segment was
        removed. Implements `reader.Segments`.
        """
        segments = self._segments
        index = segment.number + 1 - segments[0].number
        if index < 0:
            raise FileNotFoundError(f"the file after {segment.path} was removed")
        return segments[index] if index < len(segments) else None

    def reader_at_end(self) -> LogReader:
        return LogReader(self, self.end_offset)

    @property
    def end_offset(self) -> LogOffset:
        return dataclasses.replace(self._at)

    def reader_at(self, position: Position) -> tuple[LogReader, Position] | None:
        """Returns a reader of the blocks after a position, and the end of the log's last transaction that does not end after the position.
        Returns None if the position is before the oldest segment or after the log's last complete transaction. Raises StoreDamagedError if
        a record is damaged.
        """
        key = key_of(position)
        segments = [each for each in self._segments if each.key <= key]
        if not segments or key > key_of(self.end):
            return None
        reader = LogReader(self, LogOffset.beginning(segments[-1]))
        return reader, reader.find(key)

    # ── writing ──

    @property
    def _at(self) -> LogOffset:
        if self._log_offset is None:
            raise RuntimeError("the event log is used before `begin` or `open` was called")
        return self._log_offset

    @property
    def _where(self) -> tuple[SegmentFile, Where]:
        """Where the next record is written: the file, and the offset in it."""
        if self._file is None:
            raise RuntimeError("the event log is used before `begin` or `open` was called")
        return self._file, Where(self._file.descriptor, self._at.offset, self._at.seed)

    def _passed(self, head: RecordHeader) -> None:
        """Moves the offset for the next record to the end of the record that was written."""
        self._log_offset = self._at.behind(head)
        self._log_offset.segment.size = self._log_offset.offset
        self._unsynced = True

    def _append_names(self, block: Block) -> None:
        now = (block.tables, len(block.tables), block.gtid_sources, len(block.gtid_sources))
        same = all(one is other for one, other in zip(now[::2], self._names[::2], strict=True))
        if same and now[1::2] == self._names[1::2]:
            return
        names = Names(tuple(block.tables), tuple(block.gtid_sources))
        self._passed(write_record(self._where[1], NAMES, text_of(names_record(names, self._at.names)), ()))
        self._log_offset = dataclasses.replace(self._at, names=names)
        self._names = now

    def _roll(self, start: Position, mark: Mark, number: int, before_bytes: int) -> None:
        path = path_of(self.directory, number)
        segment = Segment(path, number, self._ledger_id, self._filters, start, mark, before_bytes, 0, 0, 0)
        self._file, segment = make_segment(self.directory, segment)
        self._segments = (*self._segments, segment)
        self._log_offset, self._last = LogOffset.beginning(segment), None
        self._names = (None, 0, None, 0)

    def _take_up(self, newest: Segment) -> None:
        """Reads the newest segment, up to the first damaged record, to find the end of the log: the end of the last complete
        transaction.
        """
        reader, size = LogReader(self, LogOffset.beginning(newest)), newest.size
        last: Block | None = None
        end = reader.log_offset  # The end of the last complete transaction so far.
        try:
            while (found := reader.next()) is not None:
                if found is not DROPPED and found.transaction_count:
                    last, end = (
                        dataclasses.replace(found, buffer=np.zeros(0, np.uint8)),
                        dataclasses.replace(reader.log_offset),
                    )
        except StoreDamagedError as error:
            log.warning(
                "stored_tail_removed",
                file=str(newest.path),
                kept_bytes=end.offset,
                removed_bytes=size - end.offset,
                why=str(error.__cause__),
            )
        newest.size, self._last, self._log_offset = end.offset, last, end


def _whole_segments(directory: Path) -> list[Segment]:
    """Returns the newest segments without a gap between their numbers. Removes the newest files if their first records are incomplete. Each
    segment gets the size that the next segment recorded for it, and the newest segment gets the size of its file.
    """
    found: list[Segment] = []
    for number in reversed(numbers_in(directory) if directory.is_dir() else []):
        path = path_of(directory, number)
        if found and number != found[0].number - 1:
            log.warning("stored_files_before_gap_ignored", file=str(path), next=found[0].number)
            break
        try:
            segment = read_segment(path, number)
        except TornError as error:
            if found:
                raise StoreDamagedError(
                    f"{path} cannot be read ({error}): restore this file, or remove {directory}, and the "
                    "engine reads the events from the source again"
                ) from error
            log.warning(
                "stored_tail_removed", file=str(path), kept_bytes=0, removed_bytes=path.stat().st_size, why=str(error)
            )
            path.unlink()
            continue
        if found:
            if segment.size < found[0].before_bytes:
                raise StoreDamagedError(
                    f"{path} has {segment.size} bytes, and the next file expects {found[0].before_bytes} "
                    f"bytes: restore {path}, or remove {directory}, and the engine reads the events from the "
                    "source again"
                )
            segment.size = found[0].before_bytes
        found.insert(0, segment)
    return found
