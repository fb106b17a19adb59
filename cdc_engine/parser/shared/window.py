"""Holds the newest bytes of a dump for several readers. Each reader reads through its own `DumpLine`, called a line, which stores the
reader's position. One thread adds bytes; the readers run in other threads.

The dump follows the fastest reader: bytes that this reader has passed may be removed, and the dump waits for this reader. So a slow reader
never delays another one, and the dump does not run ahead of all readers. A reader whose next bytes were removed gets `FellBehindError`.
"""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections import deque

from sluice.cdc_engine.contracts import Bytes
from sluice.cdc_engine.errors import SourceConnectionError
from sluice.cdc_engine.limits import READ_BUFFER_BYTES
from sluice.cdc_engine.position import Position

# The minimum distance between two stored boundaries. A reader begins at a boundary and skips the bytes up to its position.
BOUNDARY_BYTES = 1 << 16
# How far a reader's position may be ahead of the dump when the reader joins. The dump soon reaches that position.
AHEAD_BYTES_MAX = READ_BUFFER_BYTES


class FellBehindError(Exception):
    """The window no longer has the bytes that a reader would read next. The reader continues with its own connection."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Boundary:
    """An event boundary: an event begins after `at` bytes of the dump, at the offset `offset` of `file`.

    `opening`: the two packets that opened the file; `created`: its creation time in seconds since 1970, 0 if unknown.
    """

    at: int
    file: str
    offset: int
    opening: bytes
    created: int = 0


@dataclasses.dataclass
class DumpBuffer:
    """A buffer with bytes of the dump. `begin`: how many bytes of the dump precede the buffer. `filled`: how many bytes of the buffer can
    be read.
    """

    begin: int
    buffer: Bytes
    filled: int = 0


class DumpWindow:
    """The window of a dump. `pieces_max`: the maximum number of buffers, at least two."""

    def __init__(self, pieces_max: int) -> None:
        self._pieces_max = max(2, pieces_max)
        self._pieces: deque[DumpBuffer] = deque()
        self._boundaries: deque[Boundary] = deque()
        self._tail: Boundary | None = None
        self._lines: set[DumpLine] = set()
        self._changed = threading.Condition()
        self._ended: SourceConnectionError | None = None

    # ── the dump's side ──

    def make_room(self, seconds: float) -> bool:
        """Returns whether the dump may add a buffer. If the window is full, waits up to `seconds` until the fastest reader has passed the
        oldest buffer.
        """
        deadline = time.monotonic() + seconds
        with self._changed:
            while len(self._pieces) >= self._pieces_max:
                if max((line.at for line in self._lines), default=math.inf) >= self._pieces[1].begin:
                    self._pieces.popleft()
                    while self._boundaries and self._boundaries[0].at < self._pieces[0].begin:
                        self._boundaries.popleft()
                elif not self._changed.wait(deadline - time.monotonic()) and time.monotonic() >= deadline:
                    return False
            return True

    def add(self, begin: int, buffer: Bytes) -> None:
        """Adds an empty buffer, which the dump fills next."""
        with self._changed:
            self._pieces.append(DumpBuffer(begin, buffer))

    def publish(self, filled: int, tail: Boundary | None) -> None:
        """Makes the first `filled` bytes of the newest buffer readable. `tail`: the dump's position; None if it is inside an event of
        several packets.
        """
        with self._changed:
            self._pieces[-1].filled = filled
            if tail is not None:
                last = self._boundaries[-1] if self._boundaries else None
                if last is None or last.opening != tail.opening or tail.at - last.at >= BOUNDARY_BYTES:
                    self._boundaries.append(tail)
                self._tail = tail
            self._changed.notify_all()

    def end(self, error: SourceConnectionError) -> None:
        """Ends the window. A reader gets `error` after it has read all bytes."""
        with self._changed:
            self._ended = error
            self._changed.notify_all()

    @property
    def line_count(self) -> int:
        with self._changed:
            return len(self._lines)

    # ── the readers' side ──

    def join(self, position: Position) -> DumpLine | None:
        """Returns a reader that continues after a position; None if the window does not have the bytes after the position."""
        with self._changed:
            boundary = self._before(position) if self._ended is None else None
            if boundary is None:
                return None
            line = DumpLine(self, boundary)
            self._lines.add(line)
            return line

    def _before(self, position: Position) -> Boundary | None:
        """Returns the last boundary at or before a position, or None if the window does not have the position."""
        tail = self._tail
        if tail is None or (tail.file == position.file and position.offset > tail.offset + AHEAD_BYTES_MAX):
            return None
        fits = [each for each in self._boundaries if each.file == position.file and each.offset <= position.offset]
        if not fits or (fits[-1].created and position.file_created not in (0, fits[-1].created)):
            return None
        return fits[-1]

    def leave(self, line: DumpLine) -> None:
        with self._changed:
            self._lines.discard(line)
            self._changed.notify_all()

    def read(self, line: DumpLine, space: memoryview, seconds: float) -> int:
        """Implements `DumpLine.receive_into`."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while not (found := self._following(line.at, len(space))).nbytes:
                if self._ended is not None:
                    raise self._ended
                left = deadline - time.monotonic()
                if left <= 0:
                    return 0
                self._changed.wait(left)
            line.at += found.nbytes
            self._changed.notify_all()
        space[: found.nbytes] = found.data
        return found.nbytes

    def _following(self, at: int, bytes_max: int) -> Bytes:
        """Returns the readable bytes of one buffer that follow the first `at` bytes of the dump."""
        if at < self._pieces[0].begin:
            raise FellBehindError
        piece = next(each for each in reversed(self._pieces) if each.begin <= at)
        return piece.buffer[at - piece.begin : min(piece.filled, at - piece.begin + bytes_max)]


class DumpLine:
    """A reader of the window, with the interface of a connection. `at`: how many bytes of the dump precede the reader's position.
    `boundary`: the event boundary at which it began to read.
    """

    def __init__(self, window: DumpWindow, boundary: Boundary) -> None:
        self._window, self.boundary = window, boundary
        self._opening, self.at = boundary.opening, boundary.at

    def receive_into(self, space: memoryview, seconds: float) -> int:
        """Copies bytes into `space`: first the packets that opened the file, then the bytes after the boundary. Returns their number, 0 if
        none arrived within `seconds`.

        Raises FellBehindError. After the last byte of a dump that ended, raises the error that ended it.
        """
        if self._opening:
            count = min(len(space), len(self._opening))
            space[:count], self._opening = self._opening[:count], self._opening[count:]
            return count
        return self._window.read(self, space, seconds)

    def close(self) -> None:
        self._window.leave(self)
