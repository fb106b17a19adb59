"""Reads an interval of the binlog while the stream continues, and stages it like a batch. Used by `plan` and `work`.

It has its own connection, which is not a replica's, and its own scan with the schemas of the interval: the engine is not affected."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator
from pathlib import Path

import numpy as np

from sluice.cdc_engine.binlog.block import end_position
from sluice.cdc_engine.binlog.events.recorded import MemoryPrepared
from sluice.cdc_engine.config import DestinationConfig
from sluice.cdc_engine.contracts import NOTHING, Batch, Block, BlockSlice
from sluice.cdc_engine.instance.rows.schemas import IntervalSchemas
from sluice.cdc_engine.instance.sources import archive_of, source_facts, source_of
from sluice.cdc_engine.instance.tables.value_policies import keys_of, policies_of
from sluice.cdc_engine.parser.positions.binlog_files import BinlogFiles
from sluice.cdc_engine.parser.start_position import DumpStart
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.sink.column_filter import ColumnFilter
from sluice.cdc_engine.staging.rules import StagingRules
from sluice.cdc_engine.staging.staging import StagingResult, stage


def binlog_files(config: DestinationConfig) -> BinlogFiles:
    """Returns the current binlog files of the source, with those of its archive. Raises SourceConnectionError, ConfigurationError."""
    return BinlogFiles(source_of(config), source_facts(config), archive_of(config))


class IntervalReader:
    """Reads the interval after `start`, up to `until` if that is given; at most about `bytes_max` of it.

    `bytes`: bytes of the binlog read so far. `end`: end of the last transaction read. `whole`: all of it was read.
    """

    def __init__(
        self,
        config: DestinationConfig,
        start: Position,
        schemas: IntervalSchemas,
        tables: frozenset[str],
        *,
        until: Position | None = None,
        bytes_max: int = 1 << 62,
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._config, self._schemas, self._tables = config, schemas, tables
        self._until, self._bytes_max, self._progress = until, bytes_max, progress
        self.start = self.end = start
        self.bytes = 0
        self.seconds = 0.0
        self.whole = False

    def staged(self, directory: Path) -> StagingResult:
        """Stages the interval as one batch in a folder of `directory`. Raises SluiceError."""
        began, parts = time.monotonic(), self._parts()
        nothing_yet = Batch(batch_id=0, start=self.start, end=self.start)
        columns = ColumnFilter(self._config.column_include, self._config.column_exclude)
        with contextlib.closing(parts):
            staged = stage(
                nothing_yet,
                self._config.name,
                0,
                directory,
                StagingRules(kept=columns.kept, keys=keys_of(self._config), policies=policies_of(self._config)),
                more=lambda _: next(parts, NOTHING),
            )
        self.seconds = time.monotonic() - began
        return staged

    def _parts(self) -> Generator[Batch]:
        files = binlog_files(self._config)
        start = DumpStart(position=self.start, by_gtid=False, executed_known=bool(self.start.gtid_set))
        with contextlib.closing(files.blocks(start, self._schemas, self._wanted, MemoryPrepared())) as blocks:
            for block in blocks:
                self.bytes = files.bytes_read
                self._progress(self.bytes)
                part = self._within(block)
                if part.last_event or part.changes:
                    yield self._batch(part)
                if self._is_past(block):
                    self.whole = True
                    return
                if self.bytes >= self._bytes_max:
                    return
        self.whole = True

    def _wanted(self, database: str, table: str) -> bool:
        return f"{database}.{table}" in self._tables

    def _within(self, block: Block) -> BlockSlice:
        """Returns the events of a block whose transactions end at or before `until`."""
        if block.transaction_count:
            self.end = end_position(block, block.transaction_count - 1)
        if self._until is None or not self._is_past(block):
            return BlockSlice(block, 0, block.event_count)
        last = int(np.searchsorted(block.transaction_end, self._until.offset, side="right")) - 1
        same_file = block.file == self._until.file
        return BlockSlice(block, 0, int(block.transaction_events[last]) if same_file and last >= 0 else 0)

    def _is_past(self, block: Block) -> bool:
        """Returns whether a block ends after `until`."""
        if self._until is None or not block.transaction_count:
            return False
        return end_position(block, block.transaction_count - 1).order_key > self._until.order_key

    def _batch(self, part: BlockSlice) -> Batch:
        return Batch(
            batch_id=0,
            start=self.start,
            end=self.end,
            slices=(part,),
            event_count=part.last_event,
            byte_count=part.block.byte_count,
        )
