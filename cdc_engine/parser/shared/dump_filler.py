"""Receives the bytes of a shared dump, which is one dump of a server that several parsers read. Puts the bytes into buffers, and tracks the
position in the binlog up to which bytes were received. `stream`, which has the socket, calls this module.
"""

from __future__ import annotations

import numpy as np

from sluice.cdc_engine import limits
from sluice.cdc_engine.contracts import Bytes
from sluice.cdc_engine.parser.scan.framing import ROOM_BYTES_MIN
from sluice.cdc_engine.parser.scan.skipping import EventWalk
from sluice.cdc_engine.parser.shared.window import Boundary, DumpWindow


class DumpFiller:
    """Fills `window` with the bytes of a dump that several parsers share. The socket writes bytes into `space`, then `received` makes these
    bytes readable for the parsers. `answer` is the packet with which the server ended the dump, or empty while the dump runs.
    """

    def __init__(
        self,
        window: DumpWindow,
        *,
        checksum: bool,
        contiguous: bool,
        buffer_bytes: int = limits.READ_BUFFER_BYTES,
        room_bytes_min: int = ROOM_BYTES_MIN,
    ) -> None:
        self._window = window
        self._walk = EventWalk(checksum=checksum, contiguous=contiguous)
        self._buffer_bytes, self._room_bytes_min = buffer_bytes, room_bytes_min
        self._buffer: Bytes = np.empty(0, np.uint8)
        self._begin = 0  # The number of bytes of the dump before this buffer.
        # Offsets in the buffer: the end of the processed bytes, and the end of the received bytes.
        self._at = self._end = 0

    @property
    def answer(self) -> bytes:
        return self._walk.answer

    def space(self, seconds: float) -> memoryview | None:
        """Returns buffer space for the next bytes. Returns None if the window stays full for `seconds`. A full window gets space only when
        the fastest reader has passed the oldest buffer.
        """
        if len(self._buffer) - self._end < self._room_bytes_min:
            if not self._window.make_room(seconds):
                return None
            tail = self._buffer[self._at : self._end]
            self._begin += self._at
            self._buffer = np.empty(self._buffer_bytes, np.uint8)
            self._buffer[: len(tail)] = tail
            self._at, self._end = 0, len(tail)
            self._window.add(self._begin, self._buffer)
        return memoryview(self._buffer)[self._end :]  # type: ignore[arg-type]  # numpy's stubs before Python 3.12

    def received(self, count: int) -> None:
        """Processes `count` bytes that the socket wrote into `space`. Raises BinlogFormatError if they are not a stream of events."""
        self._end += count
        opened = True
        while opened:
            self._at, opened = self._walk.step(self._buffer, self._at, self._end)
            self._window.publish(self._at, self._boundary())

    def _boundary(self) -> Boundary | None:
        walk = self._walk
        if not walk.described or walk.missing < 0:
            return None
        return Boundary(
            at=self._begin + self._at + walk.missing,
            file=walk.file,
            offset=walk.offset,
            opening=walk.opening,
            created=walk.created,
        )
