"""Finds the kinds of runs of a destination that fail twice or more in a row, for the engine's status. `tick` asks it; it asks `runs`.

Decided by level, as settling is: from the newest records of each job, so that a restart or a lost tick changes nothing. Merges are not
among them: their failures are counted by batch (`backoff`), for one job merges all batches in turn.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestration.sensor.runs import RunStore

LOOK_SECONDS = 15.0  # a look is one query for each kind
FAILED_MIN = 2  # one failure is often a killed process, and the next run goes on


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunKind:
    """One job. `what` it does, in the plural; `remedy`: what an operator does, a sentence without its end.

    `step`: of a job for all destinations, the step whose config names one. `matters`: whether its failures still count; else always.
    """

    what: str
    job: str
    remedy: str
    step: str = ""
    matters: Callable[[], bool] = lambda: True


@dataclasses.dataclass(frozen=True, kw_only=True)
class FailedRuns:
    """Runs of a job that failed one after the other. `run_id`, `reason`: of the newest."""

    in_a_row: int
    run_id: str
    reason: str


class FailingRuns:
    """Of one destination. `only_one`: whether conf/ has no other, so that a job whose config names none means this one."""

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
        """One sentence for each kind that fails; of a look a few seconds ago where that is the newest."""
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
        named = given.get("destination") or ""
        return bool(named == self._destination or (not named and self._only_one))


def sentence(kind: RunKind, failed: FailedRuns) -> str:
    """What fails, how often, why, and what to do. It stays the same while the next run is waited for or at work."""
    return (
        f"{failed.in_a_row} runs in a row that {kind.what} failed, the newest ({failed.run_id[:8]} of {kind.job}) with: "
        f"{failed.reason.rstrip('.')}; {kind.remedy}"
    )
