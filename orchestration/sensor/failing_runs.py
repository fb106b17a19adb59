"""Finds the kinds of runs of a destination that failed twice or more in a row. Ticks report these kinds in the engine's status.

The module counts failures in the newest run records of each job, so the counts survive a restart and a lost tick. Only the reason of the
newest failure is read from Dagster's events. Merges are not included: `backoff` counts their failures per batch, because one job merges all
batches.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sluice.orchestration.sensor.backoff import FailedRuns
from sluice.orchestration.sensor.runs import RunStore

# The run records are read at most once in this many seconds, because each read costs one query per kind of runs (`RunKind`).
LOOK_SECONDS = 30.0
# Failures are reported from this number of failed runs in a row. The cause of a single failure is often a killed process, and the next run
# then succeeds.
FAILED_MIN = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunKind:
    """A kind of runs whose failures are reported.

    - `what` completes the text "runs that", for example "read the rows of tables". `remedy` says what an operator does, as the end of a
      sentence.
    - `step` is set for a job that serves all destinations. `step` names the step whose config names the destination.
    - `entry` is set for a job with several kinds of runs. It has three values: the config key that distinguishes the kinds, the value of
      this key for this kind, and the value that applies if a run's config lacks the key.
    - `matters` returns whether failures are reported now.
    """

    what: str
    job: str
    remedy: str
    step: str = ""
    entry: tuple[str, str, str] | None = None
    matters: Callable[[], bool] = lambda: True


class FailingRuns:
    """Finds the failing runs of one destination. `only_one` says that conf/ has no other destination. A run config that names no
    destination then belongs to this destination.
    """

    def __init__(
        self,
        destination: str,
        kinds: Sequence[RunKind] = (),
        *,
        only_one: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._destination, self._kinds, self._only_one, self._clock = destination, tuple(kinds), only_one, clock
        self._due = -LOOK_SECONDS
        self._troubles: tuple[str, ...] = ()

    def troubles(self, runs: RunStore) -> tuple[str, ...]:
        """Returns a sentence for each kind of runs that failed FAILED_MIN or more times in a row. Leaves out kinds whose failures are not
        reported now (`RunKind.matters`). Reads the run records at most once in LOOK_SECONDS, and returns the same sentences in between.
        """
        now = self._clock()
        if now >= self._due:
            self._due = now + LOOK_SECONDS
            found = (self._trouble(kind, runs) for kind in self._kinds if kind.matters())
            self._troubles = tuple(sentence for sentence in found if sentence)
        return self._troubles

    def _trouble(self, kind: RunKind, runs: RunStore) -> str:
        failed = runs.failed_in_a_row(kind.job, lambda config: self._concerns(kind, config), FAILED_MIN)
        return sentence(kind, failed) if failed is not None else ""

    def _concerns(self, kind: RunKind, run_config: Mapping[str, Any]) -> bool:
        if not kind.step:
            return True
        given = run_config.get("ops", {}).get(kind.step, {}).get("config") or {}
        if kind.entry is not None:
            key, value, default = kind.entry
            if given.get(key, default) != value:
                return False
        named = given.get("destination") or ""
        return bool(named == self._destination or (not named and self._only_one))


def sentence(kind: RunKind, failed: FailedRuns) -> str:
    """Returns a sentence with the number of failures, the reason and the remedy. Runs that have not ended do not change the sentence."""
    return (
        f"{failed.in_a_row} runs in a row that {kind.what} failed, the newest ({failed.run_id[:8]} of {kind.job}) with: "
        f"{failed.reason.rstrip('.')}; {kind.remedy}"
    )
