"""Lists the kinds of a destination's runs other than merges, and what to do when runs of a kind fail. `code_location` passes the list
to the ticks.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from sluice.cdc_engine.errors import SluiceError
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.orchestration.checks.equality import equality_job_name
from sluice.orchestration.retention.jobs import JOB as PRUNE_JOB
from sluice.orchestration.run.maintain_jobs import maintain_name
from sluice.orchestration.run.rows import job as rows
from sluice.orchestration.run.snapshot_run import snapshot_name
from sluice.orchestration.sensor.failing_runs import RunKind

if TYPE_CHECKING:
    from pathlib import Path

    from sluice.cdc_engine.config import SluiceConfig

NOT_APPLIED = "these changes are not applied again"


def run_kinds(config: SluiceConfig, destination: str) -> tuple[RunKind, ...]:
    """Returns the kinds of runs whose failures are reported in the engine's status."""
    directory = config.destination_dir(destination)
    return (
        RunKind(
            what="read the rows of tables",
            job=f"{snapshot_name(destination)}_job",
            remedy=(
                "Sluice tries again, and changes of these tables are buffered until then: correct the cause; "
                f"`sluice snapshot cancel {destination} TABLE` ends a snapshot"
            ),
            matters=functools.partial(_snapshot_is_open, directory),
        ),
        _operation(rows.OperationKind.repair, "repair rows", "rows still differ"),
        _operation(rows.OperationKind.backfill, "apply past changes again", NOT_APPLIED),
        RunKind(
            what="apply the changes of an hour again",
            job=rows.by_hour_name(destination),
            remedy=_start_again(rows.by_hour_name(destination), NOT_APPLIED),
        ),
        RunKind(
            what="maintain the Delta tables",
            job=f"{maintain_name(destination)}_job",
            remedy=_start_again(
                f"{maintain_name(destination)}_job",
                "small files are not joined, and files that are no longer needed are not deleted",
            ),
        ),
        RunKind(
            what="remove old runs from Dagster's storage",
            job=PRUNE_JOB,
            remedy=_start_again(PRUNE_JOB, "Dagster's storage grows"),
        ),
        RunKind(
            what="compare the lake with the source",
            job=equality_job_name(destination),
            remedy=_start_again(equality_job_name(destination), "whether the lake equals the source is unknown"),
        ),
    )


def _operation(operation: rows.OperationKind, what: str, meanwhile: str) -> RunKind:
    """Returns the kind of the runs of the job `rows.JOB` that carry out this operation. `what` says what the runs do. `meanwhile` says what
    is not done until a run succeeds.
    """
    default = rows.RowsConfig().operation
    return RunKind(
        what=what,
        job=rows.JOB,
        step=rows.STEP,
        entry=("operation", operation.value, default.value),
        remedy=_start_again(f"{rows.JOB} (`operation: {operation.value}`)", meanwhile),
    )


def _start_again(job: str, meanwhile: str) -> str:
    return (
        f"{meanwhile}: correct the cause, then start the job {job} again in Dagster's UI. This problem is reported "
        "until a run of the job succeeds, or until the failed runs are deleted in Dagster"
    )


def _snapshot_is_open(directory: Path) -> bool:
    """Returns whether a snapshot is in progress. The status reports failed snapshot runs only during a snapshot. Returns True if the
    records cannot be read, so that no failure is overlooked.
    """
    try:
        return any(each.is_open for each in SnapshotRecords(directory).all())
    except SluiceError:
        return True
