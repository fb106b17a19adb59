"""Received bytes become blocks: the loop around the kernel. `framing` feeds it.

A block ends with the buffer, before a new file and around a DDL statement, which is a block of its own. Everything that is not
understood and could carry rows raises, after what came before it was given out.
"""

from __future__ import annotations

from collections.abc import Iterator

from cdc_engine.binlog import event_types as types
from cdc_engine.binlog import scan_state as at
from cdc_engine.binlog.block_maker import BlockMaker
from cdc_engine.binlog.control_events import ControlEvents
from cdc_engine.binlog.executed_track import ExecutedTrack
from cdc_engine.binlog.scan_kernel import scan
from cdc_engine.binlog.scan_state import ScanMemory, Verdict
from cdc_engine.binlog.table_references import Captured, TableReferences
from cdc_engine.contracts import Block, Bytes, SchemaHistory
from cdc_engine.errors import BinlogFormatError, ChecksumError
from cdc_engine.position import Position

PACKET_OVERHEAD = 5  # packet header 4, status byte 1
SENTENCES = {
    Verdict.BAD_LENGTH: "an event's length is not that of its packet",
    Verdict.BAD_CHECKSUM: "the CRC32 of an event does not match: it was changed on the way or on the server's disk",
    Verdict.BAD_POSITION: "an event does not begin where the one before it ended: part of the stream is missing",
    Verdict.BAD_BODY: "an event is too short for its type",
    Verdict.NO_TABLE_MAP: "a row event refers to a table that its transaction did not describe",
    Verdict.OUTSIDE: "a row event lies outside any transaction: the start position is not the end of a transaction",
    Verdict.UNFINISHED: "a transaction begins while another is open: the server wrote half a transaction",
    Verdict.SOURCES_FULL: f"the stream has more than {at.SOURCES_MAX} GTID sources",
}


class Scanner:
    """One stream from one start. `consumed`: buffer offset up to which the bytes are done with; `last_verdict`: why it stopped there.

    `checksum`: events end in a CRC32, until a file says otherwise. `contiguous`: the server sends every event, so a gap is an error.
    `executed_known`: `start.gtid_set` is all that was executed before `start`. `packets`: False for naked events, as in a file.
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
        packets: bool = True,
    ) -> None:
        self._memory = ScanMemory.make()
        self._state = self._memory.state
        self._state[at.FILE_END] = start.offset
        self._state[at.CONTIGUOUS] = contiguous
        self._state[at.CHECKSUM] = types.CHECKSUM_BYTES if checksum else 0
        self._packets = packets
        references = TableReferences(history, captured)
        executed = ExecutedTrack(start.gtid_set, known=executed_known)
        self._maker = BlockMaker(start, self._memory, executed, references.versions)
        self._control = ControlEvents(self._maker, references, history, captured)
        self.last_verdict = Verdict.INCOMPLETE

    @property
    def consumed(self) -> int:
        return int(self._state[at.AT])

    @property
    def position(self) -> Position:
        """After the last event looked at; the GTID set is that up to the last block given out, empty while it is not known."""
        return self._maker.position()

    def counters(self) -> dict[str, int]:
        places = {
            "events": at.ALL_EVENTS,
            "heartbeats": at.HEARTBEATS,
            "ignored_events": at.IGNORED,
            "dropped_row_events": at.DROPPED,
            "checksums": at.CHECKSUMS,
        }
        return {name: int(self._state[place]) for name, place in places.items()}

    def feed(self, buffer: Bytes, begin: int, end: int, *, naked: bool = False) -> Iterator[Block]:
        """Blocks of the whole events in buffer[begin:end]. Afterwards `last_verdict` is INCOMPLETE, LARGE or NOT_AN_EVENT.

        `naked`: the region is events without packet headers. The blocks keep the buffer: do not write to what was consumed.
        Raises BinlogFormatError, ChecksumError, UnknownEventError, PositionLostError; what came before the place was given out.
        """
        self._state[at.AT], self._state[at.LIMIT] = begin, end
        self._state[at.OVERHEAD] = PACKET_OVERHEAD if self._packets and not naked else 0
        self._maker.start_buffer(buffer, begin)
        while True:
            verdict = self._scan(buffer)
            if verdict == Verdict.HAND_OVER:
                event = int(self._state[at.EVENT])
                yield from self._take(buffer[event : event + int(self._state[at.EVENT_LENGTH])].tobytes())
                continue
            yield from self._maker.cut()
            if verdict in (Verdict.INCOMPLETE, Verdict.LARGE, Verdict.NOT_AN_EVENT):
                self.last_verdict = verdict
                return
            if verdict != Verdict.FULL:
                raise self._broken(verdict)

    def _scan(self, buffer: Bytes) -> Verdict:
        memory = self._memory
        return scan(buffer, memory.state, memory.events, memory.ends, memory.tables, memory.pool, memory.sources)

    def _take(self, event: bytes) -> Iterator[Block]:
        try:
            yield from self._control.take(event)
        except BinlogFormatError as error:
            yield from self._maker.cut()
            if error.offset < 0:
                begin = int(self._state[at.FILE_END] - self._state[at.EVENT_LENGTH])
                raise type(error)(error.reason, self._maker.file, begin) from error
            raise

    def _broken(self, verdict: Verdict) -> BinlogFormatError:
        kind = ChecksumError if verdict == Verdict.BAD_CHECKSUM else BinlogFormatError
        begin = int(self._state[at.FILE_END])
        if verdict not in (Verdict.BAD_LENGTH, Verdict.BAD_CHECKSUM, Verdict.BAD_POSITION):
            begin -= int(self._state[at.EVENT_LENGTH])  # the kernel had stepped over the event already
        return kind(SENTENCES[verdict], self._maker.file, begin)
