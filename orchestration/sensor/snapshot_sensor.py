"""Starts the snapshot job of a destination when one of its snapshots can progress. Reads files only; opens no connection."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import dagster as dg

from sluice.cdc_engine.errors import SluiceError
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.snapshot.steps import SnapshotStep
from sluice.orchestration.sensor.silence import silence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluice.cdc_engine.config import SluiceConfig

INTERVAL_SECONDS_MIN = 1  # as in the engine's sensor
RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 5.0, 300.0  # wait after a failed run, doubled for each consecutive failure
RUNS_LOOKED_AT = 10
HAS_PROCESS = [dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
LOST_SECONDS = 60.0  # a run takes the lock as soon as it has imported what it needs
UNDER_WAY = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


def snapshot_sensor(config: SluiceConfig, destination: str, job: dg.JobDefinition) -> dg.SensorDefinition:
    """Returns the sensor. It requests one run at a time, with longer waits after each failure, and reports when the engine's own sensor
    is silent.
    """

    @dg.sensor(
        name=f"{destination}_snapshots",
        job=job,
        minimum_interval_seconds=INTERVAL_SECONDS_MIN,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=(
            f"Starts the snapshots of tables of {destination} that were requested. Switching it off pauses them; changes are "
            "buffered meanwhile and nothing is lost."
        ),
    )
    def sense(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        events, cursor = silence(destination, config.destination_dir(destination), context.cursor)
        answer = _next_run(context)
        if isinstance(answer, dg.SkipReason):
            return dg.SensorResult(skip_reason=answer, asset_events=events, cursor=cursor)
        return dg.SensorResult(run_requests=[answer], asset_events=events, cursor=cursor)

    def _next_run(context: dg.SensorEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        try:
            due, waits = due_tables(config, destination)
        except SluiceError as error:
            return dg.SkipReason(f"{error.code}: {error}")
        if not due:
            return dg.SkipReason(waits or "no snapshot is under way")
        newest = context.instance.get_run_records(dg.RunsFilter(job_name=job.name), limit=RUNS_LOOKED_AT)
        _end_lost_runs(context.instance, newest, SnapshotRecords(config.destination_dir(destination)))
        if any(each.dagster_run.status in UNDER_WAY for each in newest):
            return dg.SkipReason(f"a run is reading {', '.join(due)}")
        failed = _failed_in_a_row([each.dagster_run.status for each in newest])
        wait = retry_seconds(failed) - (time.time() - (newest[0].end_time or 0.0)) if failed else 0.0
        if wait > 0:
            return dg.SkipReason(f"{failed} runs failed in a row; the next begins in {wait:.0f} s")
        return dg.RunRequest(tags={"sluice/snapshot": destination})

    return sense


def _end_lost_runs(instance: dg.DagsterInstance, newest: Sequence[dg.RunRecord], records: SnapshotRecords) -> None:
    """Ends runs whose process is gone, which hold no lock; Dagster itself would wait for them for ever."""
    for each in newest:
        begun = time.time() - (each.start_time or time.time())
        if each.dagster_run.status in HAS_PROCESS and begun > LOST_SECONDS and not records.are_read():
            instance.report_run_failed(
                each.dagster_run, ("its process has ended without an end of the run; the next run continues")
            )


def due_tables(config: SluiceConfig, destination: str) -> tuple[list[str], str]:
    """Returns the tables whose snapshot a run can advance, and what the other tables wait for. Raises SluiceError."""
    from sluice.cdc_engine.instance.tables.table_snapshots import decisions  # noqa: PLC0415  imports the engine's packages

    due, waits = [], []
    for record, decision in decisions(config, destination):
        if decision.step == SnapshotStep.WAIT:
            waits.append(f"{record.name}: {decision.why}")
        elif decision.step != SnapshotStep.NOTHING:
            due.append(record.name)
    return due, "; ".join(waits)


def retry_seconds(failed_in_a_row: int) -> float:
    """Returns the wait before the next run after this many consecutive failures."""
    return min(RETRY_SECONDS_MAX, RETRY_SECONDS_MIN * 2 ** (failed_in_a_row - 1)) if failed_in_a_row else 0.0


def _failed_in_a_row(newest_first: list[dg.DagsterRunStatus]) -> int:
    count = 0
    for status in newest_first:
        if status != dg.DagsterRunStatus.FAILURE:
            break
        count += 1
    return count
