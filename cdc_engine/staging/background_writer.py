"""Writes row groups in a thread while the next rows are decoded. Each staged batch has one; used by `segment_writer`.

pyarrow releases the GIL while it writes, so on two cores a batch takes as long as the slower of decoding and writing. The queue is
bounded: a caller with more work waits for a free slot."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

WRITES_MAX = 2  # How many row groups are being written or queued; each holds its rows in memory.


class BackgroundWriter:
    """Runs the submitted work in order, one after the other. The first submission starts the thread; `close` waits for the last one."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._room = threading.BoundedSemaphore(WRITES_MAX)

    def submit(self, work: Callable[[], None]) -> Future[None]:
        """Queues work and returns when there is a free slot. The returned future's `result` raises an exception of `work`."""
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
