"""Makes blocks from received bytes: calls the scan kernel in a loop, and passes the events that the kernel does not handle to
`control_events` and `unpack`.

A block ends at the end of the buffer, before a new file, and before and after a DDL statement, which is a separate block. An unknown event
that may have row changes raises an error, after the blocks before this event were yielded.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Generator, Iterator

from sluice.cdc_engine.binlog.events import event_types as types
from sluice.cdc_engine.binlog.events.compressed import COMPRESSED, content_of
from sluice.cdc_engine.binlog.events.recorded import MemoryPrepared
from sluice.cdc_engine.contracts import Block, Bytes
from sluice.cdc_engine.errors import BinlogFormatError, ChecksumError
from sluice.cdc_engine.parser.scan import state as at
from sluice.cdc_engine.parser.scan.block_maker import BlockMaker
from sluice.cdc_engine.parser.scan.control_events import ControlEvents
from sluice.cdc_engine.parser.scan.executed_track import ExecutedTrack
from sluice.cdc_engine.parser.scan.kernel import scan
from sluice.cdc_engine.parser.scan.state import ScanMemory, ScanStatus
from sluice.cdc_engine.parser.scan.table_references import Captured, TableReferences
from sluice.cdc_engine.parser.scan.unpack import Unpacker
from sluice.cdc_engine.parser.scan.xa import XaTransactions
from sluice.cdc_engine.ports import Content, PreparedTransactions, SchemaHistory
from sluice.cdc_engine.position import Position

PACKET_OVERHEAD = 5  # The bytes of a packet before its event: header (4) and status (1).
SENTENCES = {
    ScanStatus.BAD_LENGTH: "the length of an event differs from the length of its packet",
    ScanStatus.BAD_CHECKSUM: "the CRC32 of an event does not match: the event was changed in transit or on the server's disk",
    ScanStatus.BAD_POSITION: "an event does not begin at the end of the event before: part of the stream is missing",
    ScanStatus.BAD_BODY: "an event is too short for its type",
    ScanStatus.NO_TABLE_MAP: "a row event refers to a table without a table map in the transaction",
    ScanStatus.OUTSIDE_TRANSACTION: "a row event is outside any transaction: the start position is not the end of a transaction",
    ScanStatus.UNFINISHED: "a transaction begins while another is open: the server wrote half a transaction",
    ScanStatus.SOURCES_FULL: f"the stream has more than {at.SOURCES_MAX} GTID sources",
    ScanStatus.INNER_LENGTH: "the events within a compressed event have more bytes than the compressed event states",
    ScanStatus.INNER_GOES_ON: "a compressed transaction has events after the end of the transaction",
}


@dataclasses.dataclass(frozen=True)
class StreamForm:
    """The options of a `Scanner`. `packets` is True if events are in packets, as in a dump, and False for the events of a binlog file.
    `rows_queries` tells whether blocks get the SQL texts of statements that change rows, if the server logs them.
    """

    packets: bool = True
    rows_queries: bool = False


PACKETS = StreamForm()


class Scanner:
    """Scans one stream from a start position. `consumed` is the offset in the buffer up to which bytes are scanned. `last_verdict` tells
    why the scan stopped there.

    - `checksum`: whether the events before the first format description end with a CRC32. A format description determines this for the
      events after it.
    - `contiguous`: whether the server sends every event, so that a gap is an error.
    - `executed_known`: whether `start.gtid_set` is the whole executed set.
    - `prepared`: stores XA transactions, in memory by default. It also stores which row events a ROLLBACK undoes. The scan leaves out these
      events.
    """

    def __init__(
        self,
        *,
        start: Position,
        history: SchemaHistory,
        captured: Captured,
        checksum: bool = True,
        contiguous: bool = False,
        executed_known: bool = True,
        prepared: PreparedTransactions | None = None,
        form: StreamForm = PACKETS,
    ) -> None:
        self._memory = ScanMemory.make()
        self._state = self._memory.state
        self._state[at.FILE_END] = start.offset
        self._state[at.CONTIGUOUS], self._state[at.QUERIES] = contiguous, form.rows_queries
        self._state[at.CHECKSUM] = types.CHECKSUM_BYTES if checksum else 0
        self._packets = form.packets
        references = self._references = TableReferences(history, captured)

        def wanted(database: str, table: str) -> bool:
            """Returns whether the table is captured, or changes of its rows change rows of captured tables through foreign keys."""
            return captured(database, table) or bool(history.cascades(database, table))

        executed = ExecutedTrack(start.gtid_set, known=executed_known)
        self._maker = BlockMaker(start, self._memory, executed, references.versions)
        self._decompressed = Unpacker(self._maker, self._events)
        # XA transactions have an Unpacker of their own, because an XA COMMIT in a compressed event unpacks recorded events while the first
        # Unpacker is in use.
        recorded = Unpacker(self._maker, self._events)
        unpack_recorded = functools.partial(self._unpack, recorded)
        prepared = prepared or MemoryPrepared()
        self._undone = prepared.undone
        xa = XaTransactions(self._maker, wanted, prepared, unpack_recorded)
        self._control = ControlEvents(self._maker, references, history, wanted, xa, undone=self._undone)
        self.last_verdict = ScanStatus.INCOMPLETE

    @property
    def consumed(self) -> int:
        return int(self._state[at.AT])

    @property
    def position(self) -> Position:
        """The position after the last scanned event. The executed set of the position lacks transactions that were scanned and are not in a
        block yet. It is empty while the set is unknown.
        """
        return self._maker.position()

    def counters(self) -> dict[str, int]:
        indices = {
            "events": at.ALL_EVENTS,
            "heartbeats": at.HEARTBEATS,
            "ignored_events": at.IGNORED,
            "dropped_row_events": at.DROPPED,
            "checksums": at.CHECKSUMS,
        }
        return {name: int(self._state[index]) for name, index in indices.items()}

    def feed(self, buffer: Bytes, begin: int, end: int, *, naked: bool = False) -> Iterator[Block]:
        """Scans the complete events in buffer[begin:end], and yields their blocks. Afterwards, `last_verdict` is INCOMPLETE, LARGE or
        NOT_AN_EVENT.

        Blocks refer to the buffer, so the caller must not overwrite bytes that are consumed. `naked` tells that events have no packet
        headers. Raises BinlogFormatError, ChecksumError, UnknownEventError or PositionLostError, after the blocks before the error were
        yielded.

        If a ROLLBACK undoes row events that were already yielded, the transaction must be read again, and the scan raises UndoneRowsError.
        Before it raises the error, it scans the end of the transaction and the remaining bytes, so that one more reading is sufficient for
        all such transactions in the buffer.
        """
        self._state[at.AT], self._state[at.LIMIT] = begin, end
        self._state[at.OVERHEAD] = PACKET_OVERHEAD if self._packets and not naked else 0
        undoing_ended = False
        try:
            for block in self._fed(buffer):
                if self._control.undoing is None:
                    yield self._undone.without_them(block, self._references.not_undone)
                else:
                    undoing_ended = undoing_ended or bool(block.transaction_count)
        except BinlogFormatError:
            # If the transaction with undone rows has ended, the error is about later bytes. The UndoneRowsError below makes the parser read
            # the stream again, and the second reading raises the BinlogFormatError again.
            if not undoing_ended:
                raise
        if undoing_ended and self._control.undoing is not None:
            raise self._control.undoing

    def _fed(self, buffer: Bytes) -> Iterator[Block]:
        self._use(buffer)
        verdict = yield from self._events(buffer)
        yield from self._maker.end_block()
        if verdict not in (ScanStatus.INCOMPLETE, ScanStatus.LARGE, ScanStatus.NOT_AN_EVENT):
            raise self._broken(verdict)
        self.last_verdict = verdict

    def go_on_at(self, offset: int) -> None:
        """Sets the file offset of the next event. Called after a part of the file was skipped."""
        self._state[at.FILE_END] = self._state[at.BEGAN] = offset

    def _use(self, buffer: Bytes) -> None:
        self._maker.use(buffer)
        self._state[at.ELSEWHERE] = 0

    def _events(self, buffer: Bytes) -> Generator[Block, None, ScanStatus]:
        """Scans the events up to the offset state[LIMIT], and yields their blocks. Also handles the events that the kernel does not handle.
        Returns why the scan stopped.
        """
        while True:
            verdict = self._scan(buffer)
            if verdict == ScanStatus.HAND_OVER:
                yield from self._hand_over(buffer)
            elif verdict == ScanStatus.SWITCH:
                yield from self._maker.end_block()
                self._use(buffer)
            elif verdict == ScanStatus.FULL:
                yield from self._maker.end_block()
            else:
                return verdict

    def _hand_over(self, buffer: Bytes) -> Iterator[Block]:
        begin = int(self._state[at.EVENT])
        event = buffer[begin : begin + int(self._state[at.EVENT_LENGTH])]
        if event[types.TYPE_AT] in COMPRESSED:
            yield from self._decompress(event[: len(event) - int(self._state[at.CHECKSUM])])
        else:
            yield from self._take(event.tobytes())

    def _decompress(self, event: Bytes) -> Iterator[Block]:
        offset = int(self._state[at.BEGAN])
        try:
            if self._state[at.INNER_END]:
                raise BinlogFormatError("a compressed event contains another compressed event")
            content = content_of(event)
        except BinlogFormatError as error:
            yield from self._maker.end_block()
            raise type(error)(error.reason, self._maker.file, offset) from error
        yield from self._unpack(self._decompressed, content, offset)

    def _unpack(self, unpacker: Unpacker, content: Content, begin: int) -> Iterator[Block]:
        """Scans the events in `content`, which are those of a compressed event or of an XA transaction. The events get the file offset
        `begin`, and the last one ends at the end of the current event: the compressed event, or the event that commits the XA transaction.
        Errors have the position of the current event.
        """
        offset = int(self._state[at.BEGAN])
        try:
            verdict = yield from unpacker.inside(content, begin)
        except BinlogFormatError as error:
            yield from self._maker.end_block()
            raise type(error)(error.reason, self._maker.file, offset) from error
        if verdict != ScanStatus.INCOMPLETE:
            yield from self._maker.end_block()
            raise BinlogFormatError(SENTENCES[verdict], self._maker.file, offset)

    def _scan(self, buffer: Bytes) -> ScanStatus:
        memory = self._memory
        found = memory.events, memory.ends
        return scan(buffer, memory.state, *found, memory.tables, memory.pool, memory.sources, memory.queries)

    def _take(self, event: bytes) -> Iterator[Block]:
        try:
            yield from self._control.take(event)
        except BinlogFormatError as error:
            yield from self._maker.end_block()
            if error.offset < 0:
                raise type(error)(error.reason, self._maker.file, int(self._state[at.BEGAN])) from error
            raise

    def _broken(self, verdict: ScanStatus) -> BinlogFormatError:
        kind = ChecksumError if verdict == ScanStatus.BAD_CHECKSUM else BinlogFormatError
        stepped_over = verdict not in (ScanStatus.BAD_LENGTH, ScanStatus.BAD_CHECKSUM, ScanStatus.BAD_POSITION)
        begin = int(self._state[at.BEGAN if stepped_over else at.FILE_END])
        return kind(SENTENCES[verdict], self._maker.file, begin)
