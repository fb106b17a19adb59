"""One table of a batch while it is written: its segments so far, and the files of the one that is open. `staging` drives it.

A table with a change log has a second file beside each segment, in which no preimage is left out: a merge needs few of them, and the log
all. Both files end together, so a row of the log is of the segment that the table has it in.
"""

from __future__ import annotations

import dataclasses

import pyarrow as pa

from cdc_engine.binlog.rows.decoder import RowDecoder
from cdc_engine.binlog.rows.refused_values import RefusedValue
from cdc_engine.contracts import Block, Int64s, TableVersion
from cdc_engine.staging.cascades import PlaceFile
from cdc_engine.staging.manifest import Segment
from cdc_engine.staging.segment_writer import SegmentWriter


@dataclasses.dataclass
class TableFiles:
    """A table of the batch: its segments so far, and the one being written, if any. `log`: the writer of its other file."""

    database: str
    table: str
    segments: list[Segment] = dataclasses.field(default_factory=list)
    refused: list[RefusedValue] = dataclasses.field(default_factory=list)
    writer: SegmentWriter | None = None
    log: SegmentWriter | None = None
    source: TableVersion | None = None  # the version the writer was made for, before key and columns were chosen
    rows: int = 0  # in all segments
    places: PlaceFile | None = None

    @property
    def begun(self) -> SegmentWriter:
        """The writer, where there must be one."""
        if self.writer is None:
            raise ValueError(f"no segment of {self.database}.{self.table} is being written")
        return self.writer

    @property
    def writers(self) -> tuple[SegmentWriter, ...]:
        """Those that are open."""
        return tuple(writer for writer in (self.writer, self.log) if writer is not None)

    def add(self, rows: pa.RecordBatch) -> None:
        """Takes rows of the open segment."""
        self.begun.add(rows)
        self.rows += rows.num_rows

    def add_to_log(self, block: Block, chosen: Int64s) -> None:
        """Takes the same events once more, for the log, where there is one."""
        if self.log is not None:
            for rows in self.log.decoder.chunks(block, chosen):
                self.log.add(rows)
            self.log.decoder.take_refused()  # told by the other file

    def turn_decoders(self, decoder: RowDecoder, log: RowDecoder) -> None:
        """Goes on with decoders of a version that is staged alike."""
        self.refused += self.begun.decoder.take_refused()
        self.begun.decoder = decoder
        if self.log is not None:
            self.log.decoder = log

    def close(self) -> None:
        """Ends the segment."""
        if self.writer is not None and self.writer.rows:
            segment = self.writer.finish()
            if self.log is not None and self.log.rows:
                log = self.log.finish()
                segment = dataclasses.replace(segment, log=log.file, log_rows=log.rows)
            self.segments.append(segment)
            self.refused += self.writer.decoder.take_refused()
        self.writer = self.log = None

    def discard(self) -> None:
        """Drops the segment that is open."""
        for writer in self.writers:
            writer.discard()
        self.writer = self.log = None
