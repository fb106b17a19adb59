"""Writes Parquet row groups in a thread while the next rows are decoded. The staging of each batch has one such thread. Used by
`segment_writer`.

pyarrow releases the GIL while it writes. So on two cores, a batch takes only as long as the slower one of decoding and writing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

WRITES_MAX = 2  # The maximum of row groups that wait or are being written. Each has its rows in memory.


class BackgroundWriter:
    """Runs functions in a thread, one at a time, in the order in which they were submitted. `close` waits for the last function."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._room = threading.BoundedSemaphore(WRITES_MAX)

    def submit(self, work: Callable[[], None]) -> Future[None]:
        """Queues a function. Waits first if WRITES_MAX functions are queued. `result` of the returned future raises the
        function's error.
        """
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
