"""Decides when a batch whose runs failed is handed out again. The functions have no side effects; `runs` finds the failures, `tick`
waits.

It decides from the run records of this batch and of earlier ones, not from events. The first failure causes no wait, because its cause is
usually a killed process. Later waits double, so that a table that cannot be merged does not fill the list of runs. While Spark does not
answer, the waits stay short, because nothing reports its return to the sensor. A run that a person ended is not a failure; its batch is
handed out again immediately.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from dagster import DagsterRunStatus

from sluice.orchestration.base.ports import TableFailure

FIRST_SECONDS = 10.0  # The wait after the second consecutive failure. It doubles with each further one.
MERGE_SECONDS_MAX = 300.0
AWAY_SECONDS_MAX = 30.0  # The longest wait while no Spark answers.
DOUBLINGS_MAX = 16  # Enough doublings to reach both maxima; the limit prevents an overflow.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failed:
    """The failure of a batch's newest run. `in_a_row`: the number of consecutive failed deliveries up to this one; 0 if a person ended
    the run.

    `ago_seconds`: the time since the run ended. `away`: no Spark answered. `reason`: the sentence that the run reported. `damaged`: the
    staged files could not be read. `tables`: the table failures of each consecutive failed run of the batch, newest first.
    """

    in_a_row: int
    ago_seconds: float
    away: bool = False
    reason: str = ""
    damaged: bool = False
    tables: Sequence[Mapping[str, TableFailure]] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class FailedRuns:
    """Consecutive failed runs of a job. `run_id`, `reason`: the id of the newest one, and why it failed."""

    in_a_row: int
    run_id: str
    reason: str


def pause_seconds(in_a_row: int, *, away: bool) -> float:
    """Returns how long the next attempt waits after `in_a_row` consecutive failures."""
    if in_a_row <= 1:
        return 0.0
    longest = AWAY_SECONDS_MAX if away else MERGE_SECONDS_MAX
    return min(longest, FIRST_SECONDS * 2.0 ** min(in_a_row - 2, DOUBLINGS_MAX))


def remaining_seconds(failed: Failed) -> float:
    """Returns how long the next attempt must still wait; 0 if it may begin. The result never exceeds the whole pause, even if the clock
    was set back.
    """
    pause = pause_seconds(failed.in_a_row, away=failed.away)
    return min(pause, max(0.0, pause - failed.ago_seconds))


def waiting(failed: Failed) -> str:
    """Returns a sentence that says why the next attempt waits, or an empty text if the attempt may begin."""
    seconds = remaining_seconds(failed)
    if not seconds:
        return ""
    return f"waiting {math.ceil(seconds)} s before the next try ({failed.in_a_row} failed in a row): {failed.reason}"


def in_a_loop(failed: Failed) -> str:
    """Returns a sentence if several runs in a row failed, otherwise an empty text. The sentence is the same while the next run waits or
    works.
    """
    if failed.in_a_row <= 1:
        return ""
    return f"{failed.in_a_row} runs in a row failed, the newest with: {failed.reason}"


def failed_in_a_row(delivery: str, runs: Iterable[tuple[str, DagsterRunStatus]]) -> int:
    """Returns the number of consecutive failed deliveries up to `delivery`. `runs`: (delivery, status) of the destination's runs, newest
    first.

    A delivery counts if all its runs failed; one that succeeded or was ended by a person ends the sequence. Runs that are newer than
    those of `delivery`, for example re-executions of old runs, do not count.
    """
    deliveries: dict[str, set[DagsterRunStatus]] = {}
    for each, status in runs:
        deliveries.setdefault(each, set()).add(status)
    from_this_one = itertools.dropwhile(lambda each: each != delivery, deliveries)
    return len(list(itertools.takewhile(lambda each: deliveries[each] == {DagsterRunStatus.FAILURE}, from_this_one)))
