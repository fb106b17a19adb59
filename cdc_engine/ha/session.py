"""Decides for how long the holder of a shared lock may assume that it still holds the lock. This time ends some seconds before another
process can take the lock.

The clock counts the time since the machine's boot. Nobody can set this clock, and the clock continues while a process is suspended or the
machine sleeps. Clocks of two machines are never compared.
"""

from __future__ import annotations

import threading
import time

# A session is the time after a confirmation in which no other process can take the lock. The holder uses the lock only during this part of
# the session. If the next confirmation fails, the holder stops its work during the rest of the session.
TRUSTED_PART = 0.6
CONFIRM_PART = 0.2  # The interval between two confirmations, as a part of a session.


def now() -> float:
    """Returns the seconds since the machine's boot. The clock is never set, and also counts while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaseSession:
    """Measures for how long the holder of a lock may trust that it holds the lock: TRUSTED_PART of `seconds` after each confirmation. No
    other process can take the lock within `seconds` of a confirmation. Thread-safe.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._lock = threading.Lock()
        self._confirmed_at: float | None = None

    @property
    def trusted(self) -> bool:
        """Whether the last confirmation is so recent (TRUSTED_PART of `seconds`) that no other process can have taken the lock."""
        with self._lock:
            return self._confirmed_at is not None and now() - self._confirmed_at < self.seconds * TRUSTED_PART

    def confirm(self, requested_at: float) -> None:
        """Records that the record store has confirmed the lock, in answer to a query that was sent at `requested_at` (time of `now`)."""
        with self._lock:
            if self._confirmed_at is not None:
                self._confirmed_at = max(self._confirmed_at, requested_at)

    def begin(self, requested_at: float) -> None:
        with self._lock:
            self._confirmed_at = requested_at

    def end(self) -> None:
        """Records that the lock is lost or released. If an answer to an earlier query arrives after this call, `confirm` ignores the
        answer.
        """
        with self._lock:
            self._confirmed_at = None


def lost_sentence(what: str, who: str) -> str:
    """Returns the message for an engine that may not continue, because it lost the lease of `what`. `who` says who may hold the lease
    now.
    """
    return (
        f"the lease of {what} is not held by this process, or was not confirmed for too long; {who}: this "
        "engine writes no more, and continues when it gets the lease again"
    )
