"""How long a claim in another place may be trusted: until some time before that place may give it away. Used by the leases that are shared.

The clock is the machine's own, which no one sets and which goes on while a process is stopped or the machine sleeps. Two machines'
clocks are never compared.
"""

from __future__ import annotations

import threading
import time

TRUSTED_PART = 0.6  # of a session: what is left is for who must stop reading before anyone else can begin
CONFIRM_PART = 0.2  # of a session, between two confirmations


def now() -> float:
    """Seconds of a clock that nobody sets."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaseSession:
    """A claim that must be confirmed again and again. May be used from any thread."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._lock = threading.Lock()
        self._confirmed_at: float | None = None

    @property
    def trusted(self) -> bool:
        """Whether the claim is confirmed, and was so lately."""
        with self._lock:
            return self._confirmed_at is not None and now() - self._confirmed_at < self.seconds * TRUSTED_PART

    def confirm(self, asked_at: float) -> None:
        """The claim held when it was asked for, at `asked_at` or later."""
        with self._lock:
            if self._confirmed_at is not None:
                self._confirmed_at = max(self._confirmed_at, asked_at)

    def begin(self, asked_at: float) -> None:
        with self._lock:
            self._confirmed_at = asked_at

    def end(self) -> None:
        """The claim is lost or given back: no confirmation under way brings it back."""
        with self._lock:
            self._confirmed_at = None


def lost_sentence(what: str, who: str) -> str:
    """Why a holder may not go on."""
    return (
        f"the lease of {what} is not held by this process, or was not confirmed for too long; {who}: this engine writes no more; "
        "it takes the destination again when the lease is free"
    )
