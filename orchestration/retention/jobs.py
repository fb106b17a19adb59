"""Defines the job that limits the size of Dagster's storage, and its schedule. `run.maintain_jobs` defines the corresponding job for
the Delta tables.
"""

# There is no `from __future__ import annotations`, because Dagster inspects the type of `context` at runtime.

import dataclasses
import time

import dagster as dg

from sluice.cdc_engine.config import SluiceConfig
from sluice.orchestration.base.open_runs import location_label
from sluice.orchestration.base.ports import MergeFailedError
from sluice.orchestration.retention.prune import prune
from sluice.orchestration.retention.rules import RunRetention
from sluice.orchestration.run.merge_run import failure

JOB = "prune_dagster"
# The schedule starts a run once an hour, so that a run never has much to remove. The schedule avoids the full hour, because other schedules
# start their runs at the full hour.
AT = "41 * * * *"
TAG = "sluice/prune"  # conf/dagster.yaml lets the queue run only one run with this tag at a time.


def prune_job(config: SluiceConfig) -> dg.JobDefinition:
    """Returns the job that removes old runs and events from Dagster's storage. The metadata of its only step's output says how much was
    removed.
    """
    settings = config.dagster

    @dg.op(name="remove_old_runs")
    def remove_old_runs(context: dg.OpExecutionContext) -> None:
        retention = RunRetention(keep_hours=settings.keep_hours)
        begun, label = time.monotonic(), location_label(context.run)
        try:
            pruned = prune(context.instance, retention, label=label, destinations=tuple(config.streams))
        except MergeFailedError as error:
            raise failure(error) from None
        numbers = {name: dg.MetadataValue.int(value) for name, value in dataclasses.asdict(pruned).items()}
        context.add_output_metadata({**numbers, "seconds": dg.MetadataValue.float(time.monotonic() - begun)})

    @dg.job(
        name=JOB,
        executor_def=dg.in_process_executor,
        tags={TAG: "yes"},
        description=(
            f"Removes Sluice's runs and their events from Dagster's storage {settings.keep_hours:g} hours after a run ended "
            "(`dagster.keep_hours` in conf/sluice.yaml), or after a week at the earliest if the run failed. Keeps the newest "
            "materialization, observation and check result of each asset, and the newest runs of each job."
        ),
    )
    def job() -> None:
        remove_old_runs()

    return job


def prune_schedule(job: dg.JobDefinition) -> dg.ScheduleDefinition:
    """Returns the schedule that starts `job` once an hour. The schedule is on until somebody switches it off in Dagster."""
    return dg.ScheduleDefinition(
        name=f"{JOB}_schedule",
        job=job,
        description="Removes old runs and their events from Dagster's storage. While this schedule is off, nothing is removed.",
        cron_schedule=AT,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
    )
