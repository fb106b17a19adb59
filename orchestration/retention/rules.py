"""Decides which runs and events of Dagster's storage are old. Pure; `prune` carries out the decision."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

# The ticks count consecutive failures among the newest runs of a job (`sensor.runs`). If these runs were removed, two
# old failures would count again without the newer success between them.
NEWEST_RUNS_KEPT = 50
# A time that is so far in the future was written while the clock was wrong. It counts as old; otherwise it would be
# kept forever.
AHEAD_SECONDS_MAX = 3600.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunRetention:
    """How long runs and events are kept after they ended."""

    keep_hours: float
    keep_failures_hours: float

    def is_old(self, moment: float, now: float, *, failed: bool = False) -> bool:
        """Returns whether something that ended at a time is old. Failed runs are kept longer if conf/ says so."""
        hours = max(self.keep_hours, self.keep_failures_hours) if failed else self.keep_hours
        return now - moment > 3600 * hours or moment - now > AHEAD_SECONDS_MAX


@dataclasses.dataclass(frozen=True, kw_only=True)
class EndedRun:
    """A run that has ended. `number`: rises in the order in which runs were created."""

    number: int
    run_id: str
    job: str
    failed: bool
    ended_at: float


def is_outdated(run: EndedRun, retention: RunRetention, oldest_kept: Mapping[str, int], now: float) -> bool:
    """Returns whether a run must be removed. `oldest_kept`: for each job the number of the oldest among its newest runs, which are always
    kept; a job with fewer runs has none.
    """
    if run.job not in oldest_kept or run.number >= oldest_kept[run.job]:
        return False
    return retention.is_old(run.ended_at, now, failed=run.failed)
