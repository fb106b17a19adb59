"""Decides when a batch whose runs failed is handed out again. Pure functions. `runs` finds the failures, and `tick` waits.

The failures are counted from Dagster's records of the runs of this batch and of earlier batches. After the first failure the batch is
handed out at once, because the cause is usually a killed process. After the second failure the batch waits, and each further failure
doubles the wait. Without this wait, a table that cannot be merged would fill the list of runs. While Spark does not answer, the waits stay
short, because nothing tells the sensor when Spark is back.

A run that a person ended is not a failure, and its batch is handed out again at once.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from dagster import DagsterRunStatus

from sluice.orchestration.base.ports import TableFailure

FIRST_SECONDS = 10.0  # The wait after the second consecutive failure. Each further failure doubles the wait.
MERGE_SECONDS_MAX = 300.0
AWAY_SECONDS_MAX = 30.0  # The longest wait while Spark does not answer.
DOUBLINGS_MAX = 16  # After this many doublings, a wait exceeds both maxima. The limit prevents an overflow.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failed:
    """The failure of a batch's newest run.

    - `in_a_row` is the number of consecutive failed deliveries, up to the delivery of this run. The number is 0 if a person ended the run.
    - `ago_seconds` is the time since the run ended.
    - `away` is true if Spark did not answer. `damaged` is true if the staged files could not be read.
    - `reason` is the sentence that the run reported.
    - `tables` has the failed tables of each consecutive failed run of the batch, newest first.
    """

    in_a_row: int
    ago_seconds: float
    away: bool = False
    reason: str = ""
    damaged: bool = False
    tables: Sequence[Mapping[str, TableFailure]] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class FailedRuns:
    """Consecutive failed runs of a job. `run_id` is the newest one, and `reason` says why it failed."""

    in_a_row: int
    run_id: str
    reason: str


def pause_seconds(in_a_row: int, *, away: bool) -> float:
    """Returns how many seconds after the end of the newest failed run the next attempt begins, if `in_a_row` consecutive runs failed.
    `away` says that Spark did not answer; the longest wait is then AWAY_SECONDS_MAX.
    """
    if in_a_row <= 1:
        return 0.0
    longest = AWAY_SECONDS_MAX if away else MERGE_SECONDS_MAX
    return min(longest, FIRST_SECONDS * 2.0 ** min(in_a_row - 2, DOUBLINGS_MAX))


def remaining_seconds(failed: Failed) -> float:
    """Returns how many seconds from now the next attempt must still wait, or 0 if it may begin. The result is at most `pause_seconds`, even
    if the clock was set back.
    """
    pause = pause_seconds(failed.in_a_row, away=failed.away)
    return min(pause, max(0.0, pause - failed.ago_seconds))


def waiting(failed: Failed) -> str:
    """Returns why the next attempt waits, or "" if it may begin."""
    seconds = remaining_seconds(failed)
    if not seconds:
        return ""
    return f"waiting {math.ceil(seconds)} s before the next attempt ({failed.in_a_row} runs in a row failed): {failed.reason}"


def in_a_loop(failed: Failed) -> str:
    """Returns a sentence about the failures if several runs in a row failed, otherwise "". The sentence stays the same while the next run
    waits or works.
    """
    if failed.in_a_row <= 1:
        return ""
    return f"{failed.in_a_row} runs in a row failed, the newest with: {failed.reason}"


def failed_in_a_row(delivery: str, runs: Iterable[tuple[str, DagsterRunStatus]]) -> int:
    """Returns the number of consecutive failed deliveries up to `delivery`. `runs` has the delivery and the status of the destination's
    runs, newest first.

    A delivery has failed if all its runs failed. A delivery that succeeded, or that a person ended, ends the sequence. Runs that are newer
    than those of `delivery` are ignored, for example re-executions of old runs.
    """
    deliveries: dict[str, set[DagsterRunStatus]] = {}
    for each, status in runs:
        deliveries.setdefault(each, set()).add(status)
    from_this_one = itertools.dropwhile(lambda each: each != delivery, deliveries)
    return len(list(itertools.takewhile(lambda each: deliveries[each] == {DagsterRunStatus.FAILURE}, from_this_one)))
