"""Decompresses a compressed event piece by piece, and scans the events in it like all other events.

The decompressed events are written to a buffer of the size of a read buffer, called the arena. Many small compressed transactions share an
arena. A larger transaction is decompressed in pieces. So a transaction needs memory for one arena, which is as large as the largest event
if necessary, and for the blocks that are still in use.

All events in a compressed event get the file offset at which the compressed event begins. The position after the last of them is the end
of the compressed event. Equal offsets are no problem, because rows are ordered by the position of their transaction and by their number in
the transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

import numpy as np

from sluice.cdc_engine import limits
from sluice.cdc_engine.binlog.events import event_types as types
from sluice.cdc_engine.contracts import Block, Bytes
from sluice.cdc_engine.errors import BinlogFormatError
from sluice.cdc_engine.parser.scan import state as at
from sluice.cdc_engine.parser.scan.block_maker import BlockMaker
from sluice.cdc_engine.parser.scan.state import ScanStatus
from sluice.cdc_engine.ports import Content

SHORT_ROOM_BYTES = 4096  # If fewer bytes are free in the arena, the next piece gets a new arena.
# The entries of the scan state that are saved before the events in a compressed event are scanned, and restored afterwards.
OUTER = (
    *(at.AT, at.LIMIT, at.OVERHEAD, at.CHECKSUM, at.EVENT, at.EVENT_LENGTH, at.BEGAN),
    *(at.INNER_BEGIN, at.INNER_END, at.INNER_SIZE, at.INNER_DONE),
)
ScanEvents = Callable[[Bytes], Generator[Block, None, ScanStatus]]


class Unpacker:
    """Scans the events in compressed events. `scan_events` is the function that scans the bytes of a buffer from state[AT] to state[LIMIT],
    and returns why the scan stopped.
    """

    def __init__(self, maker: BlockMaker, scan_events: ScanEvents) -> None:
        self._maker = maker
        self._state = maker.memory.state
        self._scan_events = scan_events
        self._arena: Bytes = np.empty(0, np.uint8)
        self._begin = self._end = 0  # The offsets of the bytes in the arena that are not scanned yet.

    def inside(self, content: Content, begin: int) -> Generator[Block, None, ScanStatus]:
        """Scans the events in `content`, the decompressed content of the current event, and yields their blocks. Each event gets the file
        offset `begin`. The position after the last event is the end of the current event. Returns INCOMPLETE if all events were scanned,
        otherwise why the scan stopped.
        """
        state = self._state
        end, outer = int(state[at.FILE_END]), state[list(OUTER)]
        state[at.INNER_BEGIN], state[at.INNER_END] = begin, end
        state[at.INNER_SIZE], state[at.INNER_DONE] = content.size, 0
        state[at.FILE_END], state[at.OVERHEAD], state[at.CHECKSUM] = begin, 0, 0
        try:
            return (yield from self._pieces(content))
        finally:
            state[list(OUTER)] = outer
            state[at.FILE_END] = end
            state[at.ELSEWHERE] = 1

    def _pieces(self, content: Content) -> Generator[Block, None, ScanStatus]:
        left = content.size
        yield from self._room_for(min(left, limits.READ_BUFFER_BYTES))
        while left:
            count = content.read_into(memoryview(self._arena)[self._end : self._end + left])  # type: ignore[arg-type]
            if count == 0:
                raise BinlogFormatError(f"a compressed event is {left} bytes shorter than its stated decompressed size")
            self._end, left = self._end + count, left - count
            self._state[at.AT], self._state[at.LIMIT] = self._begin, self._end
            verdict = yield from self._scan_events(self._arena)
            self._begin = int(self._state[at.AT])
            if verdict != ScanStatus.INCOMPLETE:
                return verdict
            yield from self._room_to_go_on(left)
        if content.read_into(memoryview(bytearray(1))):
            raise BinlogFormatError("a compressed event is longer than its stated decompressed size")
        if self._begin != self._end:
            raise BinlogFormatError("a compressed event ends within a contained event")
        return ScanStatus.INCOMPLETE

    def _room_for(self, count: int) -> Iterator[Block]:
        """Makes sure that the arena, the buffer of the decompressed events, has `count` free bytes. Replaces it by a new arena if
        necessary. If events of another buffer are not in a block yet, first yields a block of these events.
        """
        self._begin = self._end
        if len(self._arena) - self._end < count:
            yield from self._fresh(limits.READ_BUFFER_BYTES)
        if not self._maker.uses(self._arena):
            yield from self._maker.end_block()
            self._maker.use(self._arena)

    def _room_to_go_on(self, left: int) -> Iterator[Block]:
        """Makes sure that the arena, the buffer of the decompressed events, has space for the next bytes of an incomplete event, or for the
        whole event if its length is known. `left` is the number of decompressed bytes that are still missing.
        """
        tail = self._end - self._begin
        if not left or (len(self._arena) - self._end >= min(left, SHORT_ROOM_BYTES) and not self._outgrows(tail)):
            return
        wanted = max(self._event_bytes(tail), tail) + SHORT_ROOM_BYTES
        if wanted > tail + left + SHORT_ROOM_BYTES:
            raise BinlogFormatError(
                "the events within a compressed event have more bytes than the compressed event states"
            )
        # A compressed event may state a size that is far too large, and an event within it may then state a wrong length without an error.
        # The new arena is then far too large, but takes no memory for the surplus: the system allocates pages only when bytes are written.
        yield from self._fresh(max(limits.READ_BUFFER_BYTES, wanted))

    def _outgrows(self, tail: int) -> bool:
        return self._event_bytes(tail) > len(self._arena) - self._begin

    def _event_bytes(self, tail: int) -> int:
        """Returns the length of an incomplete event, or 0 if its header is incomplete. `tail` is the number of bytes of the event that are
        in the arena, the buffer of the decompressed events.
        """
        if tail < types.HEADER_BYTES:
            return 0
        offset = self._begin + types.LENGTH_AT
        length = int.from_bytes(self._arena[offset : offset + 4].tobytes(), "little")
        if length > limits.EVENT_BYTES_MAX:
            raise BinlogFormatError(
                f"a compressed event contains an event of {length} bytes, which is not a valid length"
            )
        return length

    def _fresh(self, size: int) -> Iterator[Block]:
        """Replaces the arena, the buffer of the decompressed events. First yields a block of the events in the old arena, then moves the
        bytes that are not scanned yet to a new arena of `size` bytes.
        """
        yield from self._maker.end_block()
        arena: Bytes = np.empty(size, np.uint8)
        tail = self._arena[self._begin : self._end]
        arena[: len(tail)] = tail
        self._arena, self._begin, self._end = arena, 0, len(tail)
        self._maker.use(arena)
