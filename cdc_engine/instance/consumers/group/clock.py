"""Queries the clock of a member's source. From the answer, the group knows up to which time it has all transactions of an idle member."""

from __future__ import annotations

import collections
import threading
import time
from typing import Protocol

import structlog

from sluice.cdc_engine.parser.connection import SourceConnection
from sluice.cdc_engine.parser.stream.source_clock import ClockAnswer, read_clock, use_utc
from sluice.cdc_engine.parser.stream.watch import StreamState
from sluice.cdc_engine.source.server import Source

INTERVAL_SECONDS = 0.25
AGAIN_SECONDS = 2.0  # After a query without an answer, the source's clock is queried again after this time.
# How many of the newest answers of the source's clock are kept. Older answers are kept too, because a stream that lags may have reached
# only the time of an older answer.
ANSWERS_MAX = 4

log = structlog.get_logger()


class ClockReader(Protocol):
    """Queries the clock of one source. Not thread-safe."""

    def read(self) -> ClockAnswer:
        """Queries the source's clock, and returns the answer. Raises SluiceError if the source does not answer."""

    def close(self) -> None: ...


class SourceClock:
    """Queries the clock of a source, over a separate connection (implements `ClockReader`)."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._connection: SourceConnection | None = None

    def read(self) -> ClockAnswer:
        try:
            if self._connection is None:
                self._connection = SourceConnection(self._source)
                use_utc(self._connection)
            return read_clock(self._connection)
        except Exception:
            self.close()
            raise

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class MemberClock:
    """Queries the clock of a member's source at short intervals, in a thread. From the answers, the group knows up to which time it has all
    transactions of the member. Call `begin` and `end` once. The other methods may be called from any thread.
    """

    def __init__(self, name: str, reader: ClockReader) -> None:
        self._name, self._reader = name, reader
        self._answers: collections.deque[ClockAnswer] = collections.deque(maxlen=ANSWERS_MAX)
        self._ended = threading.Event()
        self.trouble = ""  # Why the last query got no answer, or empty.
        # How many seconds the source's clock is ahead of this host's, by the newest answer.
        self.ahead_seconds: float | None = None

    def begin(self) -> None:
        threading.Thread(target=self._run, name=f"clock-{self._name}", daemon=True).start()

    def end(self) -> None:
        """Ends the thread, but does not wait for the answer to a pending request."""
        self._ended.set()

    @property
    def newest_us(self) -> int:
        """The source's time in its newest answer, in µs since 1970. 0 before the first answer."""
        answers = list(self._answers)
        return answers[-1].now_us if answers else 0

    def reached_us(self, stream_state: StreamState | None) -> int:
        """Returns up to which time (exclusive) the stream has read all commits of the source, in µs since 1970. Returns 0 if no such time
        is known yet. `stream_state` says how far the stream has read.
        """
        return max((each.before_us for each in list(self._answers) if each.holds(stream_state)), default=0)

    def read(self) -> bool:
        """Queries the source's clock once. Returns whether the source answered."""
        begun = time.time()
        try:
            answer = self._reader.read()
        # Catches all errors, because the group would wait forever if this thread ended.
        except Exception as error:
            if (why := str(error) or type(error).__name__) != self.trouble:
                log.warning("source_clock_query_failed", member=self._name, reason=why)
            self.trouble = why
            return False
        self.trouble, self.ahead_seconds = "", answer.now_us / 1e6 - (begun + time.time()) / 2
        self._answers.append(answer)
        return True

    def _run(self) -> None:
        wait = 0.0
        while not self._ended.wait(wait):
            wait = INTERVAL_SECONDS if self.read() else AGAIN_SECONDS
        self._reader.close()
