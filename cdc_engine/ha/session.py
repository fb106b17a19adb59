"""Decides for how long the holder of a shared lock may assume that it still has the lock: until some time before another process can take
the lock.

The clock counts the time since the machine's boot. Nobody sets this clock, and it continues while a process is suspended or the machine
sleeps. Clocks of two machines are never compared.
"""

from __future__ import annotations

import threading
import time

# After a confirmation, the holder assumes for this part of a session that it has the lock. The rest of the session is the time to stop
# before another process can begin.
TRUSTED_PART = 0.6
CONFIRM_PART = 0.2  # The claim is confirmed after each such part of a session.


def now() -> float:
    """Returns the seconds since the machine's boot, by a clock that nobody sets."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaseSession:
    """A claim to a lock, which the holder must confirm at intervals. Thread-safe."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._lock = threading.Lock()
        self._confirmed_at: float | None = None

    @property
    def trusted(self) -> bool:
        """Whether the claim was confirmed so recently (TRUSTED_PART of a session) that the holder may trust it."""
        with self._lock:
            return self._confirmed_at is not None and now() - self._confirmed_at < self.seconds * TRUSTED_PART

    def confirm(self, requested_at: float) -> None:
        """Records that the store has confirmed the claim, in answer to a query that was sent at `requested_at`."""
        with self._lock:
            if self._confirmed_at is not None:
                self._confirmed_at = max(self._confirmed_at, requested_at)

    def begin(self, requested_at: float) -> None:
        with self._lock:
            self._confirmed_at = requested_at

    def end(self) -> None:
        """Records that the claim is lost or released. The answer to an earlier query does not restore it."""
        with self._lock:
            self._confirmed_at = None


def lost_sentence(what: str, who: str) -> str:
    """Returns a sentence that tells why a holder may not continue."""
    return (
        f"the lease of {what} is not held by this process, or was not confirmed for too long; {who}: this "
        "engine writes no more, and continues when it gets the lease again"
    )
