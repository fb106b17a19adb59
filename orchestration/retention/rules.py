"""Decides which runs and events in Dagster's storage are old. Pure functions. `prune` removes the old runs and events."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

# This many of a job's newest runs stay, however old they are. Ticks count a job's consecutive failures among its newest runs
# (`sensor.runs`). If a successful run between two failures were removed, the two failures would look consecutive.
NEWEST_RUNS_KEPT = 50
# Failed runs stay for a week at least, as failed ticks do (`retention` in conf/dagster.yaml), so that somebody can read on Monday why runs
# failed on the days before. The number of failed runs is limited, because after several failures in a row, the next run waits up to five
# minutes, or up to 30 s while Spark does not answer (`sensor.backoff`).
FAILURES_HOURS_MIN = 168.0
# A run whose time is further in the future than this was stored while the clock was wrong. It is removed like an old run, because otherwise
# it would stay for years.
AHEAD_SECONDS_MAX = 3600.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunRetention:
    """How long Dagster's storage keeps runs and events: `keep_hours` hours after a run ended or an event was stored."""

    keep_hours: float

    def is_old(self, moment: float, now: float, *, failed: bool = False) -> bool:
        """Returns True if a run or event that ended at `moment` is old enough to be removed. Also returns True if `moment` is more than
        AHEAD_SECONDS_MAX in the future: a clock was wrong when it was stored. Failed runs stay at least for FAILURES_HOURS_MIN.
        """
        hours = max(self.keep_hours, FAILURES_HOURS_MIN) if failed else self.keep_hours
        return now - moment > 3600 * hours or moment - now > AHEAD_SECONDS_MAX


@dataclasses.dataclass(frozen=True, kw_only=True)
class EndedRun:
    """A run that has ended, at `ended_at` in seconds since 1970. `number` rises in the order in which runs were created."""

    number: int
    run_id: str
    job: str
    failed: bool
    ended_at: float


def is_outdated(run: EndedRun, retention: RunRetention, oldest_kept: Mapping[str, int], now: float) -> bool:
    """Returns whether a run must be removed. The newest runs of each job always stay: `oldest_kept` maps a job to the number of the oldest
    of these runs. All runs of a job that is not in `oldest_kept` stay.
    """
    if run.job not in oldest_kept or run.number >= oldest_kept[run.job]:
        return False
    return retention.is_old(run.ended_at, now, failed=run.failed)
