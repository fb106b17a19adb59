"""Manages the buffers into which the socket writes, so that the scan needs no copy of the bytes.

The socket fills a buffer, and the scan reads the complete packets in this buffer. If the packet at the end of a buffer is incomplete, its
bytes are copied to the next buffer. An event of 16 MiB or more arrives in several packets, and is assembled in a separate buffer.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sluice.cdc_engine import limits
from sluice.cdc_engine.binlog.events.event_types import HEADER_BYTES, LENGTH_AT
from sluice.cdc_engine.contracts import Block, Bytes
from sluice.cdc_engine.errors import BinlogFormatError
from sluice.cdc_engine.parser.scan.scanner import Scanner
from sluice.cdc_engine.parser.scan.skipping import FileBeginning
from sluice.cdc_engine.parser.scan.state import ScanStatus

PACKET_HEADER_BYTES = 4
ROOM_BYTES_MIN = 64 * 1024  # If fewer bytes are free in the buffer, the next read gets a new buffer.
EVENT_AT = PACKET_HEADER_BYTES + 1  # In a packet, the event begins after the packet header and the status byte.


class LargeEvent:
    """Assembles an event that arrives in several packets. The bytes of the event are in `event`, and are valid when `complete` is true."""

    def __init__(self, length: int) -> None:
        self.event: Bytes = np.empty(length, np.uint8)
        self._filled = -1  # Begins at -1, because the status byte precedes the event.
        self._packet_left = 0
        self._packet_is_last = False

    @property
    def complete(self) -> bool:
        return self._packet_is_last and self._packet_left == 0

    def take(self, buffer: Bytes, begin: int, end: int) -> int:
        """Copies bytes of the event from buffer[begin:end], without the packet headers. Returns the offset after the last byte that was
        used. The caller must pass the bytes of an incomplete packet header again. Raises BinlogFormatError if the packets are longer or
        shorter than the event.
        """
        at = begin
        while not self.complete:
            if self._packet_left == 0:
                if at + PACKET_HEADER_BYTES > end:
                    return at
                self._packet_left = packet_length(buffer, at)
                self._packet_is_last = self._packet_left < limits.PACKET_BYTES_MAX
                at += PACKET_HEADER_BYTES
                continue
            if at == end:
                return at
            at = self._copy(buffer, at, min(end, at + self._packet_left))
        if self._filled != len(self.event):
            raise BinlogFormatError("the length of an event differs from the length of its packets")
        return at

    def _copy(self, buffer: Bytes, at: int, end: int) -> int:
        if self._filled + (end - at) > len(self.event):
            raise BinlogFormatError("the length of an event differs from the length of its packets")
        self._packet_left -= end - at
        skipped = 1 if self._filled < 0 else 0  # Only the first packet has a status byte.
        self._filled += skipped
        count = end - at - skipped
        self.event[self._filled : self._filled + count] = buffer[at + skipped : end]
        self._filled += count
        return end


class PacketFramer:
    """Manages the buffers of a binlog stream. The caller reads from the socket into `space()`, and then calls `received`, which scans the
    new bytes.

    - `bytes_received`: the number of bytes received so far.
    - `answer`: the packet that ended the stream, without its header: an error, or the end of the dump.
    - `beginning`: skips the part of the file before the start position, or None if the dump begins at the start position.
    """

    def __init__(
        self,
        scanner: Scanner,
        buffer_bytes: int = limits.READ_BUFFER_BYTES,
        beginning: FileBeginning | None = None,
    ) -> None:
        self._scanner = scanner
        self._beginning = beginning
        self._buffer_bytes = buffer_bytes
        self._buffer: Bytes = np.empty(buffer_bytes, np.uint8)
        self._begin = self._end = 0
        self._large: LargeEvent | None = None
        self.bytes_received = 0
        self.answer: bytes | None = None

    def space(self) -> memoryview:
        """Returns free memory for the socket, at least one byte. The memory never overlaps bytes of earlier blocks."""
        room = len(self._buffer) - self._end
        if room < min(ROOM_BYTES_MIN, self._buffer_bytes) and not self._holds_large_packet():
            self._move_tail()
        return memoryview(self._buffer)[self._end :]  # type: ignore[arg-type]  # numpy's stubs before Python 3.12

    def received(self, count: int) -> Iterator[Block]:
        """Scans the `count` bytes that the caller has written into `space()`, and yields blocks. Raises BinlogFormatError if the bytes
        cannot be parsed, and PositionLostError if the server's files do not continue the stream.
        """
        self._end += count
        self.bytes_received += count
        if self._beginning is not None:
            yield from self._pass_over(self._beginning)
            if self._beginning is not None:
                return
        while True:
            if self._large is not None:
                yield from self._go_on_with_large()
                if self._large is not None:
                    return
            yield from self._scanner.feed(self._buffer, self._begin, self._end)
            self._begin = self._scanner.consumed
            if self._scanner.last_verdict == ScanStatus.NOT_AN_EVENT:
                self._take_answer()
            if self._scanner.last_verdict != ScanStatus.LARGE or not self._begin_large():
                return

    def _pass_over(self, beginning: FileBeginning) -> Iterator[Block]:
        self._begin = yield from beginning.pass_over(self._scanner, self._buffer, self._begin, self._end)
        if beginning.answered:
            self._take_answer()
        if beginning.done:
            self._beginning = None

    def _take_answer(self) -> None:
        begin = self._begin + PACKET_HEADER_BYTES
        self.answer = self._buffer[begin : begin + packet_length(self._buffer, self._begin)].tobytes()

    def _packet_bytes(self) -> int:
        """Returns the length of the packet at `_begin`, with its header. Returns 0 if the length is unknown, or if `LargeEvent` assembles
        the event of the packet.
        """
        if self._end - self._begin < PACKET_HEADER_BYTES or self._large is not None:
            return 0
        length = packet_length(self._buffer, self._begin)
        return PACKET_HEADER_BYTES + length if length < limits.PACKET_BYTES_MAX else 0

    def _holds_large_packet(self) -> bool:
        """Returns whether the packet at `_begin` fits into the current buffer and has more than ROOM_BYTES_MIN bytes. Such a packet stays
        in the buffer, because copying it costs more than a read into the small free space.
        """
        return ROOM_BYTES_MIN < self._packet_bytes() <= len(self._buffer) - self._begin

    def _move_tail(self) -> None:
        """Copies the incomplete packet to a new buffer, with space for the whole packet if its length is known."""
        tail = self._buffer[self._begin : self._end]
        fresh: Bytes = np.empty(max(self._buffer_bytes, self._packet_bytes()), np.uint8)
        fresh[: len(tail)] = tail
        self._buffer, self._begin, self._end = fresh, 0, len(tail)

    def _begin_large(self) -> bool:
        """Begins to assemble an event of several packets. Returns False if the header of the event has not arrived completely. Raises
        BinlogFormatError if the packet is not an event, or if the length in the header is not possible.
        """
        header = self._begin + EVENT_AT
        if self._end < header + HEADER_BYTES:
            return False
        if self._buffer[header - 1] != 0:
            raise BinlogFormatError("the server sent a packet that is not an event")
        length = int.from_bytes(self._buffer[header + LENGTH_AT : header + LENGTH_AT + 4].tobytes(), "little")
        if not limits.PACKET_BYTES_MAX - 1 <= length <= limits.EVENT_BYTES_MAX:
            raise BinlogFormatError(f"an event states {length} bytes, which contradicts the length of its packets")
        self._large = LargeEvent(length)
        return True

    def _go_on_with_large(self) -> Iterator[Block]:
        large = self._large
        if large is None:
            return
        self._begin = large.take(self._buffer, self._begin, self._end)
        if large.complete:
            self._large = None
            yield from self._scanner.feed(large.event, 0, len(large.event), naked=True)


def packet_length(buffer: Bytes | memoryview, at: int) -> int:
    """Returns the length of a packet without its header. The header is at `at`."""
    return int(buffer[at]) | int(buffer[at + 1]) << 8 | int(buffer[at + 2]) << 16
