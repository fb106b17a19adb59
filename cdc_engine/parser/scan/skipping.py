"""Walks from event to event by their lengths, without decoding the events: to skip the beginning of a file, or to track the position of a
stream.

The command COM_BINLOG_DUMP has only four bytes for the offset. To start above 4 GiB, Sluice requests the whole file and skips the events
before the start position (`FileBeginning`). Sluice neither decodes the skipped events nor computes their checksums. But it checks the end
position of every event, and that an event begins exactly at the start position. The scanner gets the two events that open a file (ROTATE
and FORMAT_DESCRIPTION), because they define how to read the other events.

`EventWalk` tracks a whole stream in the same way, for `parser.shared`.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from sluice.cdc_engine.binlog.compiled import Integer, kernel
from sluice.cdc_engine.binlog.events.control import parse_format_description, parse_rotate
from sluice.cdc_engine.binlog.events.event_types import (
    CHECKSUM_BYTES,
    END_AT,
    FLAG_ARTIFICIAL,
    FORMAT_DESCRIPTION,
    HEADER_BYTES,
    HEARTBEAT,
    HEARTBEAT_V2,
    ROTATE,
    TYPE_AT,
)
from sluice.cdc_engine.binlog.little_endian import little_endian
from sluice.cdc_engine.contracts import Block, Bytes, Int64s
from sluice.cdc_engine.errors import BinlogFormatError, PositionLostError
from sluice.cdc_engine.parser.scan.kernel import PACKET_GOES_ON, REWOUND
from sluice.cdc_engine.parser.scan.scanner import PACKET_OVERHEAD, SENTENCES, Scanner
from sluice.cdc_engine.parser.scan.state import ScanStatus
from sluice.cdc_engine.position import Position

PACKET_HEADER_BYTES = 4
# Indices of the state. AT: offset of the next byte in the buffer. OFFSET: offset of the next event in the file. LEFT: number of bytes of
# the current packet that are not skipped yet. GOES_ON: 1 if the event of the current packet continues in the next packet.
AT, OFFSET, LEFT, GOES_ON, STATE_SIZE = 0, 1, 2, 3, 4
NEVER = 1 << 62  # A target offset that is greater than any file.


class FileBeginning:
    """Skips the events of a file before the position `target`.

    - `done`: whether the next event begins at `target`.
    - `contiguous`: whether the server sends every event of the file, so that a gap is an error.
    - `begins_at`: 0 if the stream has the file from its beginning. If several parsers share one dump (`parser.shared`), a parser gets the
      two events that open the file, and then events from the middle of the file. `begins_at` is then the file offset of the first event
      from the middle.
    """

    def __init__(self, target: Position, *, contiguous: bool, begins_at: int = 0) -> None:
        self._target, self._contiguous, self._begins_at = target, contiguous, begins_at
        self._state = np.zeros(STATE_SIZE, np.int64)
        self.done = self.answered = False

    def pass_over(self, scanner: Scanner, buffer: Bytes, begin: int, end: int) -> Generator[Block, None, int]:
        """Skips events in buffer[begin:end]. Returns the offset after the last skipped byte. Sets `answered` if the packet at this offset
        is no event, but an error or the end of the stream.

        Raises BinlogFormatError for bytes that are not a stream of events, and PositionLostError if no event begins at the target.
        """
        state, verdict = self._state, ScanStatus.HAND_OVER
        state[AT] = begin
        while verdict == ScanStatus.HAND_OVER:
            verdict = ScanStatus(_pass_over(buffer, state, end, self._target.offset, self._contiguous))
            if verdict == ScanStatus.HAND_OVER:
                yield from self._open_file(scanner, buffer)
        if verdict not in (ScanStatus.GO_ON, ScanStatus.INCOMPLETE, ScanStatus.NOT_AN_EVENT):
            raise BinlogFormatError(SENTENCES[verdict], self._target.file, int(state[OFFSET]))
        self.answered = verdict == ScanStatus.NOT_AN_EVENT
        if verdict == ScanStatus.GO_ON:
            self._arrive(scanner)
        return int(state[AT])

    def _open_file(self, scanner: Scanner, buffer: Bytes) -> Generator[Block, None, None]:
        begin = int(self._state[AT])
        yield from scanner.feed(buffer, begin, begin + len(packet_at(buffer, begin)))
        described = buffer[begin + PACKET_OVERHEAD + TYPE_AT] == FORMAT_DESCRIPTION
        self._state[AT] = scanner.consumed
        self._state[OFFSET] = max(scanner.position.offset, self._begins_at if described else 0)
        if scanner.position.file != self._target.file:
            raise self._lost(f"the binlog file ends before this offset, and the next file is {scanner.position.file}")

    def _arrive(self, scanner: Scanner) -> None:
        if self._state[OFFSET] != self._target.offset:
            raise self._lost(f"an event begins before this offset and ends at {int(self._state[OFFSET])}")
        scanner.go_on_at(self._target.offset)
        self.done = True

    def _lost(self, why: str) -> PositionLostError:
        return PositionLostError(
            f"no event begins at {self._target.file}:{self._target.offset}: {why}; set the position to the "
            "end of a transaction"
        )


class EventWalk:
    """Tracks which position in the binlog the bytes of a dump have reached.

    - `file`: name of the current binlog file, or empty until the server names the first file.
    - `created`: creation time of the file in seconds since 1970.
    - `offset`: file offset of the next event (64 bits).
    - `missing`: how many bytes of the event directly before `offset` have not arrived yet. -1 if this event continues in another packet,
      whose length is not known yet.
    - `opening`: the packets of the events that open the file (ROTATE and FORMAT_DESCRIPTION).
    - `described`: whether the FORMAT_DESCRIPTION event of the file has arrived. `opening` then has both packets.
    - `answer`: the packet that ended the stream, without its header. Empty until the stream ends.
    """

    def __init__(self, *, checksum: bool, contiguous: bool) -> None:
        self._checksum_bytes = CHECKSUM_BYTES if checksum else 0
        self._contiguous = contiguous
        self._state = np.zeros(STATE_SIZE, np.int64)
        self.file, self.created, self.opening, self.described = "", 0, b"", False
        self.answer = b""

    @property
    def offset(self) -> int:
        return int(self._state[OFFSET])

    @property
    def missing(self) -> int:
        return -1 if self._state[GOES_ON] else int(self._state[LEFT])

    def step(self, buffer: Bytes, begin: int, end: int) -> tuple[int, bool]:
        """Processes events in buffer[begin:end]. Returns (offset after the last processed byte, whether the processing stopped after an
        event that opens a file). After such an event, the caller must call `step` again for the remaining bytes. At a packet that ends the
        stream, sets `answer`.

        Raises BinlogFormatError for bytes that are not a stream of events.
        """
        state = self._state
        state[AT] = begin
        verdict = ScanStatus(_pass_over(buffer, state, end, NEVER, self._contiguous))
        opened = verdict == ScanStatus.HAND_OVER
        if opened:
            self._open_file(packet_at(buffer, int(state[AT])))
        elif verdict == ScanStatus.NOT_AN_EVENT:
            self.answer = packet_at(buffer, int(state[AT]))[PACKET_HEADER_BYTES:]
        elif verdict != ScanStatus.INCOMPLETE:
            raise BinlogFormatError(SENTENCES[verdict], self.file, self.offset)
        return int(state[AT]), opened

    def _open_file(self, packet: bytes) -> None:
        event = packet[PACKET_OVERHEAD:]
        if event[TYPE_AT] == FORMAT_DESCRIPTION:
            described = parse_format_description(event)
            self._checksum_bytes = CHECKSUM_BYTES if described.checksum else 0
            self.created, self.opening, self.described = described.created, self.opening + packet, True
            # If a dump begins in the middle of a file, the server repeats this event with the end position 0. The repeated event is not at
            # OFFSET, so its length is not added.
            self._state[OFFSET] += len(event) if end_of(event) else 0
        else:
            rotation = parse_rotate(event, self._checksum_bytes)
            self.file, self.created, self.opening, self.described = rotation.file, 0, packet, False
            self._state[OFFSET] = rotation.offset
        self._state[AT] += len(packet)


def packet_at(buffer: Bytes, begin: int) -> bytes:
    """Returns the packet at `begin`, with its header. The packet must be complete and contain a whole event."""
    payload = int.from_bytes(buffer[begin : begin + 3].tobytes(), "little")
    return buffer[begin : begin + PACKET_HEADER_BYTES + payload].tobytes()


def end_of(event: bytes) -> int:
    """Returns the end position in the header of an event. The header has only the low 32 bits of the position, and 0 if the event is not in
    a file.
    """
    return int.from_bytes(event[END_AT : END_AT + 4], "little")


@kernel
def _pass_over(buffer: Bytes, state: Int64s, limit: Integer, target: Integer, contiguous: Integer) -> ScanStatus:
    """Skips events by their lengths. Returns GO_ON when OFFSET has reached `target`, INCOMPLETE when more bytes must arrive, HAND_OVER at a
    complete event that opens a file, and NOT_AN_EVENT at a packet that is not an event. Otherwise returns the reason why the bytes are
    invalid.
    """
    while True:
        taken = min(state[LEFT], limit - state[AT])
        state[AT] += taken
        state[LEFT] -= taken
        if state[LEFT] > 0:
            return ScanStatus.INCOMPLETE
        if state[GOES_ON] == 0 and state[OFFSET] >= target:
            return ScanStatus.GO_ON
        if state[AT] + PACKET_HEADER_BYTES > limit:
            return ScanStatus.INCOMPLETE
        if state[GOES_ON] == 0:
            verdict = _step(buffer, state, limit, contiguous)
            if verdict != ScanStatus.GO_ON:
                return verdict
        payload = little_endian(buffer, state[AT], 3)
        state[AT] += PACKET_HEADER_BYTES
        state[LEFT] = payload
        state[GOES_ON] = 1 if payload == PACKET_GOES_ON else 0


@kernel
def _step(buffer: Bytes, state: Int64s, limit: Integer, contiguous: Integer) -> ScanStatus:
    """Moves OFFSET to the end of the event whose packet is at AT. Reads only the header of the event."""
    payload, event = little_endian(buffer, state[AT], 3), state[AT] + PACKET_OVERHEAD
    whole = state[AT] + PACKET_HEADER_BYTES + payload <= limit
    if payload == 0 or (event <= limit and buffer[event - 1] != 0):
        return ScanStatus.NOT_AN_EVENT if whole else ScanStatus.INCOMPLETE
    if payload <= HEADER_BYTES:
        return ScanStatus.BAD_LENGTH
    if event + HEADER_BYTES > limit:
        return ScanStatus.INCOMPLETE
    length, kind = little_endian(buffer, event + 9, 4), buffer[event + 4]
    if length != payload - 1 and (payload < PACKET_GOES_ON or length < payload - 1):
        return ScanStatus.BAD_LENGTH
    artificial = buffer[event + 17] & FLAG_ARTIFICIAL != 0
    if kind == FORMAT_DESCRIPTION or (artificial and kind == ROTATE):
        return ScanStatus.HAND_OVER if whole else ScanStatus.INCOMPLETE
    if artificial or kind in (HEARTBEAT, HEARTBEAT_V2):
        return ScanStatus.GO_ON
    expected, end = state[OFFSET] + length, little_endian(buffer, event + 13, 4)
    # MariaDB 11 writes 0 for the end position within a transaction.
    ahead = (end - expected) & 0xFFFFFFFF if end > 0 else 0
    if ahead >= REWOUND or (ahead > 0 and contiguous):
        return ScanStatus.BAD_POSITION
    state[OFFSET] = expected + ahead
    return ScanStatus.GO_ON
