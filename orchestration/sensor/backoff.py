"""When a batch whose runs failed is handed out again. Pure; `runs` finds what failed, `tick` waits as long as is answered here.

Decided by level, as settling is: from the run records of the batch that is out and of those before it. The first failure costs no wait:
most are one killed process. Then the waits double, so that a table that cannot be merged does not fill the list of runs. While Spark is
away they stay short: nobody tells the sensor that it is back. A run that was ended by hand is no failure, its batch comes again at once.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from dagster import DagsterRunStatus

from orchestration.ports import TableFailure

FIRST_SECONDS = 10.0  # after the second failure in a row; doubles up to
MERGE_SECONDS_MAX = 300.0
AWAY_SECONDS_MAX = 30.0  # while no Spark answers
DOUBLINGS_MAX = 16  # far above any of the limits; keeps the power small


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failed:
    """The failure of a batch's newest run. `in_a_row`: deliveries that failed one after the other, this one included; 0: ended by hand.

    `ago_seconds`: since it ended. `away`: because no Spark answered. `reason`: what the run said, a sentence. `damaged`: the staged files
    could not be read. `tables`: what the failed runs of the batch say of its tables, the newest first, without a break.
    """

    in_a_row: int
    ago_seconds: float
    away: bool = False
    reason: str = ""
    damaged: bool = False
    tables: Sequence[Mapping[str, TableFailure]] = ()


def pause_seconds(in_a_row: int, *, away: bool) -> float:
    """How long after so many failures in a row the next try may begin."""
    if in_a_row <= 1:
        return 0.0
    longest = AWAY_SECONDS_MAX if away else MERGE_SECONDS_MAX
    return min(longest, FIRST_SECONDS * 2.0 ** min(in_a_row - 2, DOUBLINGS_MAX))


def remaining_seconds(failed: Failed) -> float:
    """How long the next try must still wait; 0 when it may begin. Never more than the whole pause, whatever the clock did."""
    pause = pause_seconds(failed.in_a_row, away=failed.away)
    return min(pause, max(0.0, pause - failed.ago_seconds))


def waiting(failed: Failed) -> str:
    """Why the next try waits, a sentence; empty when it may begin."""
    seconds = remaining_seconds(failed)
    if not seconds:
        return ""
    return f"waiting {math.ceil(seconds)} s before the next try ({failed.in_a_row} failed in a row): {failed.reason}"


def in_a_loop(failed: Failed) -> str:
    """Several runs in a row have failed, a sentence that stays the same while the next one is waited for or at work; else empty."""
    if failed.in_a_row <= 1:
        return ""
    return f"{failed.in_a_row} runs in a row failed, the newest with: {failed.reason}"


def failed_in_a_row(delivery: str, runs: Iterable[tuple[str, DagsterRunStatus]]) -> int:
    """How many deliveries have failed without a break, up to this one. `runs`: (delivery, status) of a destination's, the newest first.

    A delivery counts when all its runs failed; one that succeeded, or was ended by hand, is a break. An old run that was executed again
    by hand lies before this delivery and counts nothing.
    """
    deliveries: dict[str, set[DagsterRunStatus]] = {}
    for each, status in runs:
        deliveries.setdefault(each, set()).add(status)
    from_this_one = itertools.dropwhile(lambda each: each != delivery, deliveries)
    return len(list(itertools.takewhile(lambda each: deliveries[each] == {DagsterRunStatus.FAILURE}, from_this_one)))
