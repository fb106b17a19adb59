"""Counts the requests and answers of one destination's clients, for Prometheus. Counters only rise. `session` updates them."""

from __future__ import annotations

import bisect
import dataclasses
import threading
from collections import Counter

LATENCY_MS = (2.5, 10.0, 25.0, 100.0)  # Upper bounds of the latency histogram's buckets, the same as Canal's.


@dataclasses.dataclass(frozen=True)
class TrafficCounters:
    """The counters at one moment: `packets` by kind, and `errors` by number. `latencies` has one count per bound in LATENCY_MS: the answers
    that took longer than the previous bound, and at most this bound. The last value counts the answers that took longer than all bounds.
    """

    packets: dict[str, int]
    errors: dict[int, int]
    bytes: int
    empty_batches: int
    latencies: tuple[int, ...]
    latency_ms_sum: float


class ClientTraffic:
    """Counts the packets, errors and answers of all clients of one destination. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._packets: Counter[str] = Counter()
        self._errors: Counter[int] = Counter()
        self._bytes = self._empty = 0
        self._latencies = [0] * (len(LATENCY_MS) + 1)
        self._sum_ms = 0.0

    def note(self, kind: str, seconds: float, sent_bytes: int, error: int = 0, *, empty: bool = False) -> None:
        """Counts one packet of the type `kind`, which was answered with `sent_bytes` bytes after `seconds`. `error` is the error number of
        the answer, or 0. `empty`: the answer is to a get that found no changes.
        """
        milliseconds = seconds * 1000
        with self._lock:
            self._packets[kind] += 1
            self._bytes += sent_bytes
            self._empty += empty
            if error:
                self._errors[error] += 1
            self._latencies[bisect.bisect_left(LATENCY_MS, milliseconds)] += 1
            self._sum_ms += milliseconds

    def counters(self) -> TrafficCounters:
        with self._lock:
            return TrafficCounters(
                packets=dict(self._packets),
                errors=dict(self._errors),
                bytes=self._bytes,
                empty_batches=self._empty,
                latencies=tuple(self._latencies),
                latency_ms_sum=self._sum_ms,
            )


_traffic: dict[str, ClientTraffic] = {}
_lock = threading.Lock()


def traffic_of(destination: str) -> ClientTraffic:
    """Returns the counters of a destination in this process. Creates them, starting at 0, at the first call."""
    with _lock:
        return _traffic.setdefault(destination, ClientTraffic())
