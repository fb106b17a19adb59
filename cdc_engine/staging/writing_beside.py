"""A thread that writes row groups while the next rows are decoded. One for each batch that is staged; `segment_writer` gives it work.

pyarrow writes without the interpreter's lock, so on two cores a batch takes as long as the longer of the two. What waits is bounded: who
gives more work waits until there is room for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

WRITES_MAX = 2  # row groups that are being written or wait for it; each holds its rows in memory


class WritingBeside:
    """Does what it is given in that order, one after the other. The thread is made with the first of it; `close` waits for the last."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._room = threading.BoundedSemaphore(WRITES_MAX)

    def submit(self, work: Callable[[], None]) -> Future[None]:
        """Returns as soon as there is room; what `work` raises is raised by the result of what is returned."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="write")
        self._room.acquire()
        written = self._pool.submit(work)
        written.add_done_callback(lambda _: self._room.release())
        return written

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
