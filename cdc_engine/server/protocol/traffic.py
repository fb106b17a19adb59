"""What clients of one destination asked and were answered: counters that only grow. Written by `session`, read for Prometheus."""

from __future__ import annotations

import bisect
import dataclasses
import threading
from collections import Counter

LATENCY_MS = (2.5, 10.0, 25.0, 100.0)  # upper bounds, as Canal's own


@dataclasses.dataclass(frozen=True)
class Told:
    """A moment of it. `packets`: by kind; `errors`: by number; `latencies`: below each of LATENCY_MS, and above the last."""

    packets: dict[str, int]
    errors: dict[int, int]
    bytes: int
    empty_batches: int
    latencies: tuple[int, ...]
    latency_ms_sum: float


class Traffic:
    """Of one destination, over all its clients; from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._packets: Counter[str] = Counter()
        self._errors: Counter[int] = Counter()
        self._bytes = self._empty = 0
        self._latencies = [0] * (len(LATENCY_MS) + 1)
        self._sum_ms = 0.0

    def note(self, kind: str, seconds: float, sent_bytes: int, error: int = 0, *, empty: bool = False) -> None:
        """One packet of a client, answered."""
        milliseconds = seconds * 1000
        with self._lock:
            self._packets[kind] += 1
            self._bytes += sent_bytes
            self._empty += empty
            if error:
                self._errors[error] += 1
            self._latencies[bisect.bisect_left(LATENCY_MS, milliseconds)] += 1
            self._sum_ms += milliseconds

    def told(self) -> Told:
        with self._lock:
            return Told(
                packets=dict(self._packets),
                errors=dict(self._errors),
                bytes=self._bytes,
                empty_batches=self._empty,
                latencies=tuple(self._latencies),
                latency_ms_sum=self._sum_ms,
            )


_traffic: dict[str, Traffic] = {}
_lock = threading.Lock()


def traffic_of(destination: str) -> Traffic:
    """The counters of a destination in this process, from its first client on."""
    with _lock:
        return _traffic.setdefault(destination, Traffic())
