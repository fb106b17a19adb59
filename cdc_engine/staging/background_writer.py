"""Writes row groups in a thread while the next rows are decoded. Each batch that is staged has its own thread. Used by `segment_writer`.

pyarrow releases the GIL while it writes, so on two cores a batch takes only as long as the slower of decoding and writing. The queue is
limited: `submit` waits for a free slot.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

WRITES_MAX = 2  # The maximum number of row groups that are queued or being written; each holds its rows in memory.


class BackgroundWriter:
    """Runs the submitted functions in order, one at a time. The first submission starts the thread; `close` waits for the last one."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._room = threading.BoundedSemaphore(WRITES_MAX)

    def submit(self, work: Callable[[], None]) -> Future[None]:
        """Queues a function, after waiting for a free slot. The `result` of the returned future raises the function's exception."""
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
