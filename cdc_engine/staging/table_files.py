"""Groups row events by table, and manages the segments of one table of a batch while they are written. A segment is a file with rows, a
schema change, or a TRUNCATE. The open segment is the file to which rows are being written. Used by `staging`.

If the table has a change log, each segment with rows has a second file with all before images. The first file has only the few before
images that a merge needs. The two files of a segment end together, so that both have the images of the same row events.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict

import numpy as np
import pyarrow as pa

from sluice.batch_manifest.values import Segment
from sluice.cdc_engine.binlog.rows.decoder import RowDecoder
from sluice.cdc_engine.binlog.rows.refused_values import RefusedValue
from sluice.cdc_engine.contracts import Block, BlockSlice, Int32s, Int64s, TableVersion
from sluice.cdc_engine.staging.cascades import PositionFile
from sluice.cdc_engine.staging.segment_writer import SegmentWriter


@dataclasses.dataclass
class TableFiles:
    """The files of one table of a batch: its finished segments, and the open segment if there is one. `writer` writes the open segment's
    first file, and `log` its second file, for the change log. Both are None if no segment is open. `refused` has the values that could not
    be decoded. `positions` writes a sequence number for each row, if foreign keys change the table's rows.
    """

    database: str
    table: str
    segments: list[Segment] = dataclasses.field(default_factory=list)
    refused: list[RefusedValue] = dataclasses.field(default_factory=list)
    writer: SegmentWriter | None = None
    log: SegmentWriter | None = None
    # The open segment's table version in the schema history. This version is stored because the decoder's version lacks columns that are
    # not captured, and may have another key.
    source: TableVersion | None = None
    rows: int = 0  # The rows in all segments.
    positions: PositionFile | None = None

    @property
    def begun(self) -> SegmentWriter:
        """The writer of the open segment. Raises ValueError if no segment is open."""
        if self.writer is None:
            raise ValueError(f"no segment of {self.database}.{self.table} is being written")
        return self.writer

    @property
    def writers(self) -> tuple[SegmentWriter, ...]:
        """The writers of the open segment's files, or none if no segment is open."""
        return tuple(writer for writer in (self.writer, self.log) if writer is not None)

    def add(self, rows: pa.RecordBatch) -> None:
        """Adds rows to the open segment."""
        self.begun.add(rows)
        self.rows += rows.num_rows

    def add_to_log(self, block: Block, chosen: Int64s) -> None:
        """Decodes the row events `chosen` of a block a second time, for the change log. Does nothing if the table has no change log."""
        if self.log is not None:
            for rows in self.log.decoder.chunks(block, chosen):
                self.log.add(rows)
            # Discards the values that could not be decoded, because the decoder of the segment's first file reports the same values.
            self.log.decoder.take_refused()

    def replace_decoders(self, decoder: RowDecoder, log: RowDecoder) -> None:
        """Replaces the decoders of the open segment. Called if the next rows belong to another version of the table, but the columns and
        the key of both versions are staged in the same way. The segment then continues.
        """
        self.refused += self.begun.decoder.take_refused()
        self.begun.decoder = decoder
        if self.log is not None:
            self.log.decoder = log

    def close(self) -> None:
        """Completes the files of the open segment, and adds the segment to `segments`. A segment without rows leaves no files."""
        if self.writer is not None and self.writer.rows:
            segment = self.writer.finish()
            if self.log is not None and self.log.rows:
                log = self.log.finish()
                segment = dataclasses.replace(segment, log=log.file.name, log_rows=log.rows)
            self.segments.append(segment)
            self.refused += self.writer.decoder.take_refused()
        self.writer = self.log = None

    def discard(self) -> None:
        """Drops the open segment and its files."""
        for writer in self.writers:
            writer.discard()
        self.writer = self.log = None


def runs_by_table(part: BlockSlice) -> list[tuple[TableVersion, Int64s]]:
    """Groups the row events of a slice by table. Returns, for each table, the table version and the ascending indices of the table's events
    in the block. If the version of a table changes within the slice, the events of each version have their own entry, in stream order.
    """
    tables = part.block.event_table[part.first_event : part.last_event]
    order = np.argsort(tables, kind="stable")
    grouped = tables[order]
    ends = np.flatnonzero(np.diff(grouped)) + 1
    by_name: dict[str, list[Int64s]] = defaultdict(list)
    for indices in np.split(order, ends) if len(order) else []:
        by_name[part.block.tables[tables[indices[0]]].name].append(indices)
    runs: list[tuple[TableVersion, Int64s]] = []
    for groups in by_name.values():
        runs += [(part.block.tables[tables[run[0]]], run + part.first_event) for run in _runs(groups, tables)]
    return runs


def _runs(groups: list[Int64s], tables: Int32s) -> list[Int64s]:
    """Splits the row events of one table where the version of the table changes. In most slices, a table has only one version."""
    if len(groups) == 1:
        return groups
    merged = np.sort(np.concatenate(groups))
    return np.split(merged, np.flatnonzero(np.diff(tables[merged])) + 1)
