"""Determines whether the memory of processes grows. This module samples the processes' resident sizes. For each name of a process, it fits
a line over the samples of the longest lifetime.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psutil

from benchmarks.observing.sampler import Sampler

SAMPLE_SECONDS = 2.0
WARM_PART = 0.4  # Caches are still being filled during this share of a lifetime.
WARM_SECONDS_MIN = 240.0  # A slope over less time would mean nothing.
MEBIBYTE = 1 << 20

Life = list[tuple[float, float]]  # (seconds, MiB) of each sample of one process.


class MemorySlope(Sampler):
    """Samples the memory of processes. `pids` returns the process ids of the running processes, by name."""

    def __init__(self, pids: Callable[[], Mapping[str, int]]) -> None:
        super().__init__(SAMPLE_SECONDS)
        self._pids = pids
        self._lives: dict[str, dict[int, Life]] = defaultdict(lambda: defaultdict(list))

    def _sample(self) -> None:
        for name, pid in self._pids().items():
            try:
                size = psutil.Process(pid).memory_info().rss / MEBIBYTE
            except psutil.Error:
                continue
            self._lives[name][pid].append((time.monotonic(), size))

    def record(self) -> dict[str, dict[str, Any]]:
        """Returns, for each name, the number of its processes and their peak. For the process with the longest lifetime, it also returns
        the minutes, the sizes and the slope.
        """
        return {name: _record(list(lives.values())) for name, lives in sorted(self._lives.items())}


def _record(lives: Sequence[Life]) -> dict[str, Any]:
    longest = max(lives, key=lambda life: life[-1][0] - life[0][0])
    return {
        "lives": len(lives),
        "peak_mb": round(max(size for life in lives for _, size in life)),
        "longest_life_minutes": round((longest[-1][0] - longest[0][0]) / 60, 1),
        "first_mb": round(longest[0][1]),
        "last_mb": round(longest[-1][1]),
        "slope_mb_per_hour": slope(longest),
        "each_ten_minutes_mb": sizes(longest),
    }


def sizes(life: Life) -> list[int]:
    """Returns the size in MiB at the beginning of a lifetime, and then every ten minutes."""
    begun, found = life[0][0], list[int]()
    for at, size in life:
        if at - begun >= len(found) * 600:
            found.append(round(size))
    return found


def slope(life: Life) -> float | None:
    """Returns the growth in MiB per hour, by a line through the samples after the warm-up. Returns None if these samples cover too little
    time.
    """
    warm = life[int(len(life) * WARM_PART) :]
    if not warm or warm[-1][0] - warm[0][0] < WARM_SECONDS_MIN:
        return None
    times, sizes = zip(*warm, strict=True)
    return round(statistics.linear_regression(times, sizes).slope * 3600, 1)
