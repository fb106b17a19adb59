"""Passes over the beginning of a binlog file that the server could only be asked for from its first byte on. Driven by `framing`.

COM_BINLOG_DUMP has four bytes for the offset. A place above 4 GiB is reached by asking for the whole file and stepping from event to event
by their lengths: nothing is decoded and no checksum computed, but every end position is held against the bytes, and an event must begin
exactly where the stream is to go on. The scanner sees the two events that open a file, for they say how to read the others.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from cdc_engine.binlog.compiled import Integer, kernel
from cdc_engine.binlog.events.event_types import (
    FLAG_ARTIFICIAL,
    FORMAT_DESCRIPTION,
    HEADER_BYTES,
    HEARTBEAT,
    HEARTBEAT_V2,
    ROTATE,
)
from cdc_engine.binlog.little_endian import little_endian
from cdc_engine.binlog.scan.kernel import PACKET_GOES_ON, REWOUND
from cdc_engine.binlog.scan.scanner import PACKET_OVERHEAD, SENTENCES, Scanner
from cdc_engine.binlog.scan.state import ScanStatus
from cdc_engine.contracts import Block, Bytes, Int64s
from cdc_engine.errors import BinlogFormatError, PositionLostError
from cdc_engine.position import Position

PACKET_HEADER_BYTES = 4
# What the kernel keeps: buffer offset, file offset, bytes of the packet in hand that are still to come, whether its event goes on in the
# next packet.
AT, PLACE, LEFT, GOES_ON, STATE_SIZE = 0, 1, 2, 3, 4


class FileBeginning:
    """What lies before `target` in its file. `contiguous`: as the scanner's. `done`: the next event begins at the target."""

    def __init__(self, target: Position, *, contiguous: bool) -> None:
        self._target, self._contiguous = target, contiguous
        self._state = np.zeros(STATE_SIZE, np.int64)
        self.done = self.answered = False

    def pass_over(self, scanner: Scanner, buffer: Bytes, begin: int, end: int) -> Generator[Block, None, int]:
        """Takes what it can of buffer[begin:end]; the offset of the first byte not taken. `answered`: a packet there is no event.

        Raises BinlogFormatError on what is no stream of events, PositionLostError when no event begins at the target.
        """
        state, verdict = self._state, ScanStatus.HAND_OVER
        state[AT] = begin
        while verdict == ScanStatus.HAND_OVER:
            verdict = ScanStatus(_pass_over(buffer, state, end, self._target.offset, self._contiguous))
            if verdict == ScanStatus.HAND_OVER:
                yield from self._open_file(scanner, buffer)
        if verdict not in (ScanStatus.GO_ON, ScanStatus.INCOMPLETE, ScanStatus.NOT_AN_EVENT):
            raise BinlogFormatError(SENTENCES[verdict], self._target.file, int(state[PLACE]))
        self.answered = verdict == ScanStatus.NOT_AN_EVENT
        if verdict == ScanStatus.GO_ON:
            self._arrive(scanner)
        return int(state[AT])

    def _open_file(self, scanner: Scanner, buffer: Bytes) -> Generator[Block, None, None]:
        begin = int(self._state[AT])
        payload = int.from_bytes(buffer[begin : begin + 3].tobytes(), "little")
        yield from scanner.feed(buffer, begin, begin + PACKET_HEADER_BYTES + payload)
        self._state[AT], self._state[PLACE] = scanner.consumed, scanner.position.offset
        if scanner.position.file != self._target.file:
            raise self._lost(f"the file ends before it, {scanner.position.file} follows")

    def _arrive(self, scanner: Scanner) -> None:
        if self._state[PLACE] != self._target.offset:
            raise self._lost(f"an event reaches over it, to {int(self._state[PLACE])}")
        scanner.go_on_at(self._target.offset)
        self.done = True

    def _lost(self, why: str) -> PositionLostError:
        return PositionLostError(
            f"no event begins at {self._target.file}:{self._target.offset}: {why}; set a position that is the end of a transaction"
        )


@kernel
def _pass_over(buffer: Bytes, state: Int64s, limit: Integer, target: Integer, contiguous: Integer) -> ScanStatus:
    """GO_ON at or after the target, INCOMPLETE, HAND_OVER for a whole event that opens a file, else what is wrong."""
    while True:
        taken = min(state[LEFT], limit - state[AT])
        state[AT] += taken
        state[LEFT] -= taken
        if state[LEFT] > 0:
            return ScanStatus.INCOMPLETE
        if state[GOES_ON] == 0 and state[PLACE] >= target:
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
    """Moves PLACE after the event whose packet begins at AT, by its header alone."""
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
    expected, end = state[PLACE] + length, little_endian(buffer, event + 13, 4)
    ahead = (end - expected) & 0xFFFFFFFF if end > 0 else 0  # MariaDB 11 leaves it 0 within a transaction
    if ahead >= REWOUND or (ahead > 0 and contiguous):
        return ScanStatus.BAD_POSITION
    state[PLACE] = expected + ahead
    return ScanStatus.GO_ON
