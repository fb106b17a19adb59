"""Recognizes a destination's own runs, and finds runs that Dagster created and that will never begin. The snapshot sensor and the schedules
of maintenance end a run that will never begin, because they request no other run while one is open. `sensor.settle` uses the same limits
for the runs of batches.
"""

from __future__ import annotations

import time
from pathlib import Path

import dagster as dg

from sluice.cdc_engine.destination_files import read_ledger
from sluice.orchestration.base.batch_reference import LEDGER_TAG

# While a run has one of these statuses, the snapshot sensor and the schedules request no other run, which would only wait.
UNDER_WAY = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
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


def ledger_tags(directory: Path) -> dict[str, str]:
    """Returns the tags by which the snapshot sensor and the schedules recognize the runs of a destination, also after the code location was
    renamed. Returns no tags if there is no ledger yet. Raises MetaError if the ledger cannot be read.
    """
    ledger = read_ledger(directory).ledger_id
    return {LEDGER_TAG: ledger} if ledger else {}


def add_ledger_tags(context: dg.OpExecutionContext, directory: Path) -> None:
    """Adds the tags of `ledger_tags` to the current run, which lacks them if somebody started it in Dagster's UI."""
    context.instance.add_run_tags(context.run_id, ledger_tags(directory))


def location_label(run: dg.DagsterRun) -> str:
    """Returns the label of the code location that launched a run, or "" if none did."""
    origin = run.remote_job_origin
    return origin.repository_origin.get_label() if origin is not None else ""


def state_seconds(record: dg.RunRecord) -> float:
    """Returns for how many seconds a run has had its status."""
    return max(0.0, time.time() - record.update_timestamp.timestamp())


def why_it_never_begins(record: dg.RunRecord) -> str:
    """Returns why a run must be ended that was created and has not begun to work, or "" if it may still begin."""
    status, seconds = record.dagster_run.status, state_seconds(record)
    if status not in _SECONDS_MAX or seconds <= _SECONDS_MAX[status]:
        return ""
    return f"the run has been {status.value} for {seconds:.0f} s"
