"""Gives the freed memory of an engine process back to the system. The code server and `sluice engine` call this module regularly.

glibc returns a large allocation to the system when it is freed, but keeps smaller allocations in its arenas. After the first large
allocation is freed, glibc raises the size above which an allocation counts as large. It then keeps all buffers of the stream. For example,
after a backlog, 154 of the 204 MiB of the process were free and not returned.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

from sluice.cdc_engine.limits import MEBIBYTE

LOOK_SECONDS = 5.0
# Free memory up to this size stays in the process, because the kernel must clear returned pages before the process uses them again, which
# takes 10 ms for this many bytes.
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
    """Checks every LOOK_SECONDS how many bytes are free in malloc's arenas, and returns them to the system if they are at least
    FREED_BYTES_MAX. Does nothing if malloc is not that of glibc 2.33 or later.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, libc: Any = None) -> None:
        self._clock, self._due = clock, 0.0
        self._returned = 0  # How many of the bytes that malloc counts as free were already returned to the kernel.
        self._libc = libc or ctypes.CDLL(None)
        self._info = getattr(self._libc, "mallinfo2", None)
        if self._info is not None:
            self._info.restype = _Mallinfo

    def look(self, _in_use: object = None) -> None:
        """Returns freed memory to the system if enough is free, and if LOOK_SECONDS have passed since the last check."""
        if self._info is None or self._clock() < self._due:
            return
        self._due = self._clock() + LOOK_SECONDS
        free = int(self._info().fordblks)
        if to_return(free, self._returned):
            self._libc.malloc_trim(0)
            self._returned = free
        self._returned = min(free, self._returned)


def to_return(free: int, returned: int) -> bool:
    """Returns whether at least FREED_BYTES_MAX bytes are free and not returned to the system yet. `free` is malloc's count of free bytes.
    It includes the `returned` bytes until malloc uses them again.
    """
    return free - returned >= FREED_BYTES_MAX
