"""Breaks down the seconds between a change's commit in MySQL and its arrival in the lake; for `bench e2e`.

It uses only what every reader can see: the ledger shows when a batch was handed out and when it was staged, the run lock shows when its
merge began, and the commit in the Delta log names its delivery.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.sampler import Sampler
from sluice.cdc_engine.destination_files import read_ledger, run_lock_held
from sluice.cdc_engine.errors import SluiceError
from sluice.console.demo.lake import Marked, percentile

LOOK_SECONDS = 0.02
PARTS = ("wait_for_batch", "staging", "wait_for_run", "merge")


@dataclasses.dataclass
class Way:
    """The times of one delivery, in seconds since 1970; 0 if not observed."""

    cut: float = 0.0
    staged: float = 0.0
    begun: float = 0.0


class BatchWatch(Sampler):
    """Observes the deliveries of a destination while the block lasts."""

    def __init__(self, directory: Path) -> None:
        super().__init__(LOOK_SECONDS)
        self._directory = directory
        self.ways: dict[int, Way] = {}

    def _sample(self) -> None:
        with contextlib.suppress(SluiceError):
            self._look()

    def _look(self) -> None:
        batch, now = read_ledger(self._directory).head, time.time()
        if batch is None:
            return
        way = self.ways.setdefault(batch.delivery, Way(cut=now))
        if batch.path and not way.staged:
            way.staged = now
        if way.staged and not way.begun and run_lock_held(self._directory):
            way.begun = now

    def parts(self, markers: Sequence[Marked]) -> list[dict[str, float]]:
        """Returns the seconds of each part, for each marker whose delivery was observed; their sum is the marker's freshness."""
        found = []
        for each in markers:
            way = self.ways.get(each.delivery)
            if way is not None and way.begun:
                steps = [each.sent, max(each.sent, way.cut), max(each.sent, way.staged), max(each.sent, way.begun)]
                ends = [*steps[1:], each.shown]
                found.append({name: end - start for name, start, end in zip(PARTS, steps, ends, strict=True)})
        return found


def medians(parts: Sequence[dict[str, float]]) -> dict[str, float | None]:
    """Returns the median of each part."""
    return {f"{name}_p50_s": percentile(sorted(part[name] for part in parts), 0.5) for name in PARTS}
