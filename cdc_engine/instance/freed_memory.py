"""Returns memory to the system that an engine process has freed. The code server and `sluice engine` call it regularly.

glibc keeps freed memory in its arenas if a block of it was as small as one that was freed before. After the first blocks, that is so for
all buffers of the stream: after a backlog, or after tables were resumed, 154 of 204 MiB were free and not returned.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

from sluice.cdc_engine.limits import MEBIBYTE

LOOK_SECONDS = 5.0
# Less than this stays in the process. The kernel clears each page that is used again, which takes 10 ms for this many bytes.
FREED_BYTES_MAX = 64 * MEBIBYTE


class _Mallinfo(ctypes.Structure):
    """The struct that mallinfo2(3) returns. `fordblks` is the number of free bytes in all arenas."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in [
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        ]
    )


class FreedMemory:
    """Looks every LOOK_SECONDS at how much memory is free in malloc's arenas, and returns it if it is much. Does nothing if malloc is not
    that of glibc 2.33 or later.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, libc: Any = None) -> None:
        self._clock, self._due = clock, 0.0
        self._returned = 0  # bytes that malloc counts as free and the kernel has back already
        self._libc = libc or ctypes.CDLL(None)
        self._info = getattr(self._libc, "mallinfo2", None)
        if self._info is not None:
            self._info.restype = _Mallinfo

    def look(self, _in_use: object = None) -> None:
        """Returns freed memory, if it is much and a look is due."""
        if self._info is None or self._clock() < self._due:
            return
        self._due = self._clock() + LOOK_SECONDS
        free = int(self._info().fordblks)
        if to_return(free, self._returned):
            self._libc.malloc_trim(0)
            self._returned = free
        self._returned = min(free, self._returned)


def to_return(free: int, returned: int) -> bool:
    """Returns whether enough bytes are free that the process still has. malloc counts returned bytes as free until it uses them again."""
    return free - returned >= FREED_BYTES_MAX
