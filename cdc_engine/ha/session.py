"""Decides how long a holder may trust its claim of a shared lock: until some time before another process can take the lock. Used by the
shared leases.

The clock is the machine's own, which nobody sets and which continues while a process is stopped or the machine sleeps. The clocks of two
machines are never compared.
"""

from __future__ import annotations

import threading
import time

# The part of a session for which the holder trusts its claim. The rest is the time that it has to stop before another process can begin.
TRUSTED_PART = 0.6
CONFIRM_PART = 0.2  # The part of a session between two confirmations.


def now() -> float:
    """Returns the seconds since the machine's boot, by a clock that nobody sets."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaseSession:
    """A claim that its holder must confirm again and again. Thread-safe."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._lock = threading.Lock()
        self._confirmed_at: float | None = None

    @property
    def trusted(self) -> bool:
        """Whether the claim was confirmed within TRUSTED_PART of a session."""
        with self._lock:
            return self._confirmed_at is not None and now() - self._confirmed_at < self.seconds * TRUSTED_PART

    def confirm(self, requested_at: float) -> None:
        """Records that the store confirmed the claim, in answer to a query sent at `requested_at`."""
        with self._lock:
            if self._confirmed_at is not None:
                self._confirmed_at = max(self._confirmed_at, requested_at)

    def begin(self, requested_at: float) -> None:
        with self._lock:
            self._confirmed_at = requested_at

    def end(self) -> None:
        """Records that the claim is lost or released. The answer to a query that was sent earlier does not restore it."""
        with self._lock:
            self._confirmed_at = None


def lost_sentence(what: str, who: str) -> str:
    """Returns the sentence that says why a holder may not continue."""
    return (
        f"the lease of {what} is not held by this process, or was not confirmed for too long; {who}: this "
        "engine writes no more, and continues when it gets the lease again"
    )
