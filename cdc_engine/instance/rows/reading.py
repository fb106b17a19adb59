"""Reads an interval of the binlog while the stream continues, and stages the interval's changes like a batch. Used by `plan`, `work` and
`interval`.

Reading an interval does not affect the engine. The reader has its own connection, which the server does not count as a replica, and its own
copy of the table schemas (`IntervalSchemas`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path

import numpy as np

from sluice.cdc_engine.binlog.block import end_position
from sluice.cdc_engine.binlog.events.recorded import MemoryPrepared, RecordedEvents
from sluice.cdc_engine.binlog.rows.refused_values import ValuePolicy
from sluice.cdc_engine.config import DestinationConfig
from sluice.cdc_engine.contracts import NOTHING, Batch, Block, BlockSlice
from sluice.cdc_engine.errors import UndoneRowsError
from sluice.cdc_engine.instance.rows.schemas import IntervalSchemas
from sluice.cdc_engine.instance.sources import archive_of, source_facts, source_of
from sluice.cdc_engine.instance.tables.value_policies import keys_of
from sluice.cdc_engine.parser.positions.archive_alone import archive_alone
from sluice.cdc_engine.parser.positions.binlog_files import BinlogFiles, ReadableFiles
from sluice.cdc_engine.parser.start_position import DumpStart
from sluice.cdc_engine.ports import Content
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.sink.column_filter import ColumnFilter
from sluice.cdc_engine.source.archive import Archive
from sluice.cdc_engine.staging.rules import StagingRules
from sluice.cdc_engine.staging.staging import StagingResult, stage


def binlog_files(config: DestinationConfig) -> BinlogFiles:
    """Returns the current binlog files of the source and of its archive. Raises SourceConnectionError or ConfigurationError."""
    return BinlogFiles(source_of(config), source_facts(config), archive_of(config))


def files_for(config: DestinationConfig, archive: str, cursor: Position | None) -> ReadableFiles:
    """Returns the binlog files in the archive that a request names, without a query to the source. If the request names no archive, or the
    destination has no cursor, returns the source's binlog files. Raises SourceConnectionError, ConfigurationError or PositionLostError.
    """
    return archive_alone(Archive(archive), cursor) if archive and cursor is not None else binlog_files(config)


class PreparedBefore(MemoryPrepared):
    """Stores the prepared XA transactions of an interval that is read only to estimate a backfill. If a transaction was prepared before the
    interval and is committed in it, leaves out the transaction's rows. `MemoryPrepared` would cause an XaUnreadError.
    """

    def commit(self, name: str, order_key: int) -> Content:
        return super().commit(name, order_key) or RecordedEvents(b"")


class IntervalReader:
    """Reads the binlog after the position `start`, up to `until` if that is given, and at most about `bytes_max` bytes.

    After `staged`, `bytes` is how much of the binlog was read, `end` is the end of the last transaction that was read, and `whole` says
    whether the whole interval was read.
    """

    def __init__(
        self,
        config: DestinationConfig,
        start: Position,
        schemas: IntervalSchemas,
        tables: frozenset[str],
        *,
        files: Callable[[], ReadableFiles],
        until: Position | None = None,
        bytes_max: int = 1 << 62,
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Prepares the reader, and reads nothing yet. `tables` are the tables to read ("database.table"). `files` opens the binlog files.
        `progress` is called with the number of bytes that were read so far.
        """
        self._config, self._schemas, self._tables, self._files = config, schemas, tables, files
        self._until, self._bytes_max, self._progress = until, bytes_max, progress
        self._prepared = MemoryPrepared()
        self.start = self.end = start
        self.bytes = 0
        self.seconds = 0.0
        self.whole = False

    def staged(
        self, directory: Path, policies: Mapping[str, ValuePolicy], prepared: MemoryPrepared | None = None
    ) -> StagingResult:
        """Stages the interval as one batch, in a new folder in `directory`. `policies` has each table's policy by "database.table".
        `prepared` has the XA transactions that an earlier reader found before `start`. Raises SluiceError, for example XaUnreadError if the
        interval has the XA COMMIT of a transaction that was prepared before `start` and that `prepared` lacks.
        """
        self._prepared = prepared or self._prepared
        began = time.monotonic()
        while True:
            try:
                staged = self._staged_once(directory, policies)
            except UndoneRowsError:
                # Stages nothing, because a transaction undoes rows that were already read (ROLLBACK or ROLLBACK TO). After `_find_undone`,
                # the next reading leaves these rows out.
                self._find_undone()
            else:
                self.seconds = time.monotonic() - began
                return staged

    def _find_undone(self) -> None:
        """Reads the whole interval without staging it, and finds all rows that their own transactions undo. So one further reading can
        stage the interval without these rows, even if many transactions undo rows.
        """
        self._begin_again()
        self._prepared.undone.only_finds = True
        try:
            with contextlib.closing(self._parts()) as parts:
                for _ in parts:
                    pass
        finally:
            self._prepared.undone.only_finds = False
        self._begin_again()

    def _begin_again(self) -> None:
        self.end, self.bytes, self.whole = self.start, 0, False
        self._schemas.rewind(self.start)

    def _staged_once(self, directory: Path, policies: Mapping[str, ValuePolicy]) -> StagingResult:
        nothing_yet = Batch(batch_id=0, start=self.start, end=self.start)
        columns = ColumnFilter(self._config.column_include, self._config.column_exclude)
        with contextlib.closing(self._parts()) as parts:
            return stage(
                nothing_yet,
                self._config.name,
                0,
                directory,
                StagingRules(kept=columns.kept, keys=keys_of(self._config), policies=policies),
                more=lambda _: next(parts, NOTHING),
            )

    def _parts(self) -> Generator[Batch]:
        files = self._files()
        until = self._until or files.bound(self.start.epoch)
        if until is not None and until.order_key <= self.start.order_key:
            self.whole = True
            return
        start = DumpStart(position=self.start, by_gtid=False, executed_known=bool(self.start.gtid_set))
        self._prepared.rewind(self.start)
        with contextlib.closing(files.blocks(start, self._schemas, self._wanted, self._prepared)) as blocks:
            for block in blocks:
                self.bytes = files.bytes_read
                self._progress(self.bytes)
                part, done = self._within(block, until)
                if part.last_event or part.changes:
                    yield self._batch(part)
                if self.bytes >= self._bytes_max:
                    return
                if done:
                    self.whole = True
                    return
        self.whole = True

    def _wanted(self, database: str, table: str) -> bool:
        return f"{database}.{table}" in self._tables

    def _within(self, block: Block, until: Position | None) -> tuple[BlockSlice, bool]:
        """Returns the events of a block that belong to the interval, and whether the block reaches `until`. If the block reaches `until`,
        the events are those of the transactions that end at or before `until`. Otherwise, they are all events of the block. Sets the
        attribute `end` to the end of the last complete transaction among the returned events.
        """
        whole = BlockSlice(block, 0, block.event_count)
        if not block.transaction_count:
            return whole, False
        end = end_position(block, block.transaction_count - 1)
        if until is None or end.order_key < until.order_key:
            self.end = end
            return whole, False
        last = -1
        if block.file == until.file:
            last = int(np.searchsorted(block.transaction_end, until.offset, side="right")) - 1
        if last < 0:
            return BlockSlice(block, 0, 0), True
        # The end of the last transaction that is staged. Later transactions of the block end after `until`.
        self.end = end_position(block, last)
        return BlockSlice(block, 0, int(block.transaction_events[last])), True

    def _batch(self, part: BlockSlice) -> Batch:
        return Batch(
            batch_id=0,
            start=self.start,
            end=self.end,
            slices=(part,),
            event_count=part.last_event,
            byte_count=part.block.byte_count,
        )
