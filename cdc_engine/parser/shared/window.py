"""Holds the newest bytes of a binlog dump for several readers. One thread adds bytes. Each reader has its own thread and reads through a
`DumpReader`, which stores how far it has read.

The fastest reader sets the pace. When the window is full, the oldest bytes are removed as soon as the fastest reader has passed them.
Until then, the dump waits. A slower reader whose next bytes were removed gets `FellBehindError`.
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

# Within a binlog file, the window stores at most one `Boundary` per this many bytes of the dump. A reader that joins the window begins at
# the last stored boundary before its position, and skips the bytes up to its position.
BOUNDARY_BYTES = 1 << 16
# A reader may join the window although its position is up to this many bytes ahead of the dump, because the dump soon reaches the position.
AHEAD_BYTES_MAX = READ_BUFFER_BYTES


class FellBehindError(Exception):
    """Raised if the window has removed the bytes that a reader needs next. The reader continues with its own connection."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Boundary:
    """A boundary between two events of the dump. The next event begins after `at` bytes of the dump, at `offset` of `file`.

    `opening` are the two packets with which the server opened the file. `created` is the file's creation time in seconds since 1970, or 0
    if unknown.
    """

    at: int
    file: str
    offset: int
    opening: bytes
    created: int = 0


@dataclasses.dataclass
class DumpBuffer:
    """A buffer with bytes of the dump. `begin` is the number of bytes of the dump before this buffer. The first `filled` bytes of the
    buffer can be read.
    """

    begin: int
    buffer: Bytes
    filled: int = 0


class DumpWindow:
    """The newest bytes of a dump, in at most `pieces_max` buffers. If `pieces_max` is below two, the window has two buffers."""

    def __init__(self, pieces_max: int) -> None:
        self._pieces_max = max(2, pieces_max)
        self._pieces: deque[DumpBuffer] = deque()
        self._boundaries: deque[Boundary] = deque()
        self._tail: Boundary | None = None
        self._readers: set[DumpReader] = set()
        self._changed = threading.Condition()
        self._ended: SourceConnectionError | None = None

    # ── the dump's side ──

    def make_room(self, seconds: float) -> bool:
        """Returns whether the dump may add a buffer. If the window is full, waits up to `seconds` until the fastest reader has passed the
        oldest buffer, and removes this buffer. Without readers, removes it at once.
        """
        deadline = time.monotonic() + seconds
        with self._changed:
            while len(self._pieces) >= self._pieces_max:
                if max((reader.at for reader in self._readers), default=math.inf) >= self._pieces[1].begin:
                    self._pieces.popleft()
                    while self._boundaries and self._boundaries[0].at < self._pieces[0].begin:
                        self._boundaries.popleft()
                elif not self._changed.wait(deadline - time.monotonic()) and time.monotonic() >= deadline:
                    return False
            return True

    def add(self, begin: int, buffer: Bytes) -> None:
        """Adds a buffer of which readers cannot read any byte yet. The dump fills this buffer next."""
        with self._changed:
            self._pieces.append(DumpBuffer(begin, buffer))

    def publish(self, filled: int, tail: Boundary | None) -> None:
        """Makes the first `filled` bytes of the newest buffer readable. `tail` is the boundary that the dump has reached, or None if the
        dump is inside an event of several packets.
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
        """Ends the window. Each reader gets `error` after it has read all bytes."""
        with self._changed:
            self._ended = error
            self._changed.notify_all()

    @property
    def line_count(self) -> int:
        with self._changed:
            return len(self._readers)

    # ── the readers' side ──

    def join(self, position: Position) -> DumpReader | None:
        """Returns a reader that continues after `position`, or None if the window does not have the bytes after this position."""
        with self._changed:
            boundary = self._before(position) if self._ended is None else None
            if boundary is None:
                return None
            reader = DumpReader(self, boundary)
            self._readers.add(reader)
            return reader

    def _before(self, position: Position) -> Boundary | None:
        """Returns the last boundary between two events that is at or before a position. Returns None if the window does not have the
        position. A position up to AHEAD_BYTES_MAX after the end of the window counts as in the window, because the dump soon reaches it.
        """
        tail = self._tail
        if tail is None or (tail.file == position.file and position.offset > tail.offset + AHEAD_BYTES_MAX):
            return None
        fits = [each for each in self._boundaries if each.file == position.file and each.offset <= position.offset]
        if not fits or (fits[-1].created and position.file_created not in (0, fits[-1].created)):
            return None
        return fits[-1]

    def leave(self, reader: DumpReader) -> None:
        with self._changed:
            self._readers.discard(reader)
            self._changed.notify_all()

    def read(self, reader: DumpReader, space: memoryview, seconds: float) -> int:
        """Copies the next bytes for a reader into `space`. Returns their number, or 0 if none arrived within `seconds`. Raises
        FellBehindError if the window has removed the next bytes. After the last byte of a dump that has ended, raises the error that ended
        the dump.
        """
        deadline = time.monotonic() + seconds
        with self._changed:
            while not (found := self._following(reader.at, len(space))).nbytes:
                if self._ended is not None:
                    raise self._ended
                left = deadline - time.monotonic()
                if left <= 0:
                    return 0
                self._changed.wait(left)
            reader.at += found.nbytes
            self._changed.notify_all()
        space[: found.nbytes] = found.data
        return found.nbytes

    def _following(self, at: int, bytes_max: int) -> Bytes:
        """Returns up to `bytes_max` readable bytes, from one buffer, that follow the first `at` bytes of the dump. Raises FellBehindError
        if they were removed.
        """
        if at < self._pieces[0].begin:
            raise FellBehindError
        piece = next(each for each in reversed(self._pieces) if each.begin <= at)
        return piece.buffer[at - piece.begin : min(piece.filled, at - piece.begin + bytes_max)]


class DumpReader:
    """Reads from the window; a parser uses this reader in place of a connection. The reader began at `boundary`. `at` is the number of
    bytes of the dump before the next byte to read.
    """

    def __init__(self, window: DumpWindow, boundary: Boundary) -> None:
        self._window, self.boundary = window, boundary
        self._opening, self.at = boundary.opening, boundary.at

    def receive_into(self, space: memoryview, seconds: float) -> int:
        """Copies bytes into `space`: first the packets with which the server opened the file (`Boundary.opening`), then the bytes after the
        boundary. Returns their number, or 0 if none arrived within `seconds`.

        Raises FellBehindError if the window has removed the next bytes. After the last byte of a dump that has ended, raises the error
        that ended it.
        """
        if self._opening:
            count = min(len(space), len(self._opening))
            space[:count], self._opening = self._opening[:count], self._opening[count:]
            return count
        return self._window.read(self, space, seconds)

    def close(self) -> None:
        self._window.leave(self)
