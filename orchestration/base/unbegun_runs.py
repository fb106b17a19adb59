"""Finds runs that Dagster created and that will never begin. The snapshot sensor and the schedules of maintenance end such a run, because
they request no other run while one is open. `sensor.settle` uses the same limits for the runs of batches.
"""

from __future__ import annotations

import time

import dagster as dg

# If a run was created and is not queued after this time, it is ended. If the daemon dies after it has created the run and before it has
# queued the run, or if the storage refuses the queuing, the run is never queued.
SUBMIT_SECONDS_MAX = 120.0
# If a run is still starting after this time, it is ended. The time is long, because the run's process imports Dagster, possibly on a very
# busy machine.
STARTING_SECONDS_MAX = 180.0

_SECONDS_MAX = {
    dg.DagsterRunStatus.NOT_STARTED: SUBMIT_SECONDS_MAX,
    dg.DagsterRunStatus.STARTING: STARTING_SECONDS_MAX,
}


def state_seconds(record: dg.RunRecord) -> float:
    """Returns for how many seconds a run has had its status."""
    return max(0.0, time.time() - record.update_timestamp.timestamp())


def why_it_never_begins(record: dg.RunRecord) -> str:
    """Returns why a run must be ended that was created and has not begun to work, or "" if it may still begin."""
    status, seconds = record.dagster_run.status, state_seconds(record)
    if status not in _SECONDS_MAX or seconds <= _SECONDS_MAX[status]:
        return ""
    return f"the run has been {status.value} for {seconds:.0f} s"
