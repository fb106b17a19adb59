"""Makes blocks from the events that the scan kernel has found.

`scanner` requests a block at the end of a buffer. `control_events` requests a block before a new file and before a DDL statement.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sluice.cdc_engine.contracts import (
    FRAME,
    FRAME_FIELDS,
    NO_FRAMES,
    NO_GTID,
    Block,
    Bytes,
    Frames,
    Int64s,
    LoggedStatement,
    TableChange,
    TableVersion,
)
from sluice.cdc_engine.errors import BinlogFormatError
from sluice.cdc_engine.parser.scan import state as at
from sluice.cdc_engine.parser.scan.executed_track import ExecutedTrack
from sluice.cdc_engine.parser.scan.file_track import FileTrack
from sluice.cdc_engine.parser.scan.state import ScanMemory
from sluice.cdc_engine.position import Position


class BlockMaker:
    """Makes blocks from the events of one stream. Stores the epoch, the file and the server of the stream, and the buffer that is being
    scanned.

    `mariadb` tells whether the stream has GTIDs of MariaDB. `last_time_us` is the commit time of the last transaction that was put into a
    block. Before the first block, it is the commit time of the start position. It is 0 if unknown.
    """

    def __init__(
        self, start: Position, memory: ScanMemory, executed: ExecutedTrack, tables: list[TableVersion]
    ) -> None:
        self.epoch, self.server_uuid = start.epoch, start.server_uuid
        self.last_time_us = start.time_us
        self.files = FileTrack(start)
        self.memory = memory
        self.executed = executed
        self.mariadb = False
        self._tables = tables
        self._buffer: Bytes = np.zeros(0, np.uint8)
        # A copy of the rows query event at the end of the previous buffer. It is used only if QUERY_AT in the scan state is CARRIED.
        self._query: Bytes = self._buffer

    @property
    def file(self) -> str:
        return self.files.file

    def use(self, buffer: Bytes) -> None:
        """Sets the buffer that the kernel scans next. All row events of the current buffer must be in blocks already. If the current buffer
        ends with a rows query event whose row events have not arrived yet, stores a copy of the rows query event for the block that gets
        these row events.
        """
        state = self.memory.state
        begin = int(state[at.QUERY_AT])
        if begin >= 0:
            self._query = self._buffer[begin : begin + int(state[at.QUERY_LENGTH])].copy()
            state[at.QUERY_AT] = at.CARRIED
        self._buffer = buffer

    def uses(self, buffer: Bytes) -> bool:
        return self._buffer is buffer

    def position(self, time_us: int = 0) -> Position:
        """Returns the position after the current event. The executed set of the position has only the transactions that are in blocks."""
        offset = int(self.memory.state[at.FILE_END])
        return Position(
            epoch=self.epoch,
            file=self.file,
            offset=offset,
            gtid_set=self.executed.text,
            server_uuid=self.server_uuid,
            time_us=time_us,
            file_created=self.files.created,
        )

    def end_block(
        self, changes: tuple[TableChange, ...] = (), statement: LoggedStatement | None = None
    ) -> Iterator[Block]:
        """Yields a block with the row events and the ends of transactions since the last call, and with `changes` and `statement`. Yields
        no block if it would be empty.
        """
        state = self.memory.state
        event_count, end_count = int(state[at.EVENT_COUNT]), int(state[at.END_COUNT])
        anything = bool(event_count or end_count or changes or statement)
        if anything:
            block = self._block(
                self.memory.events[:, :event_count], self.memory.ends[:, :end_count], changes, statement
            )
        state[at.EVENT_COUNT] = state[at.END_COUNT] = state[at.QUERY_COUNT] = 0
        if anything:
            yield block

    def _open_frame(self) -> Frames:
        """Returns the frame of the open transaction as an array of one element, or NO_FRAMES if no transaction is open. A frame has facts
        about the transaction's first and last event, such as their offsets, and the logical clock (`contracts.FRAME`). Fields of events
        that have not arrived yet are -1.
        """
        state = self.memory.state
        if not state[at.OPEN]:
            return NO_FRAMES
        frame = np.full(1, -1, np.int64).astype(FRAME)
        for index, name in enumerate(FRAME_FIELDS[:4]):
            frame[name] = state[at.BEGIN_AT + index]
        frame["committed"], frame["sequence"] = state[at.COMMITTED], state[at.SEQUENCE]
        return frame

    def _open_gtid(self) -> tuple[int, int]:
        state = self.memory.state
        return (int(state[at.SOURCE]), int(state[at.NUMBER])) if state[at.OPEN] else NO_GTID

    def _block(
        self, events: Int64s, ends: Int64s, changes: tuple[TableChange, ...], statement: LoggedStatement | None
    ) -> Block:
        self.executed.name_sources(self.memory.sources, int(self.memory.state[at.SOURCE_COUNT]), mariadb=self.mariadb)
        if ends.size:
            self.last_time_us = int(ends[at.END_TIME, -1])
        known = self.executed.known
        source = ends[at.END_SOURCE] if known else np.full(ends.shape[1], -1, np.int64)
        start_gtid_set = self.executed.text
        try:
            self.executed.take(source, ends[at.END_NUMBER])
        except ValueError as error:
            raise BinlogFormatError(
                f"the stream has GTIDs of both MySQL and MariaDB ({error})",
                self.file,
                int(self.memory.state[at.BEGAN]),
            ) from error
        queries = self.memory.queries[:, : int(self.memory.state[at.QUERY_COUNT])].copy()
        begin, buffer = self._bytes_of(events, queries)
        return Block(
            epoch=self.epoch,
            file=self.file,
            server_uuid=self.server_uuid,
            buffer=buffer,
            tables=self._tables,
            event_offset=events[at.OFFSET] - begin,
            event_length=events[at.LENGTH].copy(),
            event_kind=events[at.KIND].astype(np.int8),
            event_version=events[at.VERSION].astype(np.int8),
            event_table=events[at.TABLE].astype(np.int32),
            event_position=events[at.POSITION].copy(),
            event_time_us=events[at.TIME].copy(),
            event_transaction_offset=events[at.BEGAN_AT].copy(),
            transaction_events=ends[at.END_EVENTS].copy(),
            transaction_end=ends[at.END_POSITION].copy(),
            transaction_time_us=ends[at.END_TIME].copy(),
            transaction_source=source.astype(np.int32),
            transaction_number=ends[at.END_NUMBER].copy(),
            gtid_sources=self.executed.sources,
            start_gtid_set=start_gtid_set,
            file_created=self.files.created,
            changes=changes,
            transaction_frame=frames_of(ends[at.END_FRAME :]),
            open_frame=self._open_frame(),
            open_gtid=self._open_gtid() if known else NO_GTID,
            statement=statement,
            query_event=queries[at.QUERY_EVENT],
            query_offset=queries[at.QUERY_OFFSET],
            query_length=queries[at.QUERY_BYTES],
            query_position=queries[at.QUERY_BEGAN],
        )

    def _bytes_of(self, events: Int64s, queries: Int64s) -> tuple[int, Bytes]:
        """Returns (offset in the buffer at which the block's bytes begin, the block's bytes). Changes the offsets in `queries` to offsets
        in the block's bytes.
        """
        if not events.size:
            return 0, self._buffer[:0]
        begin, end = int(events[at.OFFSET, 0]), int(events[at.OFFSET, -1] + events[at.LENGTH, -1])
        offsets = queries[at.QUERY_OFFSET]
        if not len(offsets):
            return begin, self._buffer[begin:end]
        carried = offsets == at.CARRIED  # Only the first query can be marked as CARRIED.
        if not carried[0]:
            begin = min(begin, int(offsets[0]))
        buffer = self._buffer[begin:end]
        if carried[0]:
            buffer = np.concatenate((self._query, buffer))
            begin -= len(self._query)
        offsets[:] = np.where(carried, 0, offsets - begin)
        return begin, buffer


def frames_of(fields: Int64s) -> Frames:
    """Converts frames of transactions from a plain array (a row per field, a column per transaction) to a structured array with the dtype
    FRAME.
    """
    frames = np.empty(fields.shape[1], FRAME)
    for name, values in zip(FRAME_FIELDS, fields, strict=True):
        frames[name] = values
    return frames
