"""Writes Parquet row groups in a thread while the next rows are decoded. The staging of each batch has one such thread. Used by
`segment_writer`.

pyarrow releases the GIL while it writes. So on two cores, a batch takes as long as decoding or as long as writing, whichever is slower.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

# If this many row groups wait or are being written, `submit` waits, because the rows of all these row groups are in memory.
WRITES_MAX = 2


class BackgroundWriter:
    """Runs functions in a thread, one at a time, in the order in which they were submitted. `close` waits for the last function."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._room = threading.BoundedSemaphore(WRITES_MAX)

    def submit(self, work: Callable[[], None]) -> Future[None]:
        """Queues a function. Waits first while WRITES_MAX functions are queued or running. If the function raises an error, `result` of the
        returned future raises this error.
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
