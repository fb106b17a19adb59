"""Starts the snapshot job of a destination when one of its snapshots can advance. To decide this, reads only files and Dagster's runs. Also
marks runs as failed if their process has ended.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING

import dagster as dg

from sluice.cdc_engine.errors import SluiceError
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.snapshot.steps import SnapshotStep
from sluice.orchestration.base.open_runs import UNDER_WAY, ledger_tags, why_it_never_begins
from sluice.orchestration.base.server_state import definitions_stay
from sluice.orchestration.sensor.runs import KeptInstance, label_of, newest_of
from sluice.orchestration.sensor.silence import silence
from sluice.orchestration.sensor.tick import idle_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sluice.cdc_engine.config import SluiceConfig
    from sluice.cdc_engine.instance.tables.table_snapshots import SnapshotDecisions
    from sluice.cdc_engine.snapshot.record import SnapshotRecord
    from sluice.cdc_engine.snapshot.steps import StepDecision

# This is shorter than the 5 s between two evaluations by Dagster's daemon. With 5 s here, the daemon would skip an evaluation that comes a
# millisecond early.
INTERVAL_SECONDS_MIN = 1
# The wait after the first failed run, and the longest wait. The wait doubles with each consecutive failure.
RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 5.0, 300.0
RUNS_LOOKED_AT = 10
NAMED_MAX = 5  # The reason of a tick names at most this many tables.
LOOK_SECONDS = 4.0  # While no snapshot is in progress, a tick does not return, but looks again after this time.
PAUSE_SECONDS = 1.0
NONE_IN_PROGRESS = "no snapshot is in progress"
NONE_OPEN = dg.SkipReason(NONE_IN_PROGRESS)
HAS_PROCESS = [dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
# If a run started longer than this ago and no run holds the reading lock (`SnapshotRecords.take_reading`), the run's process has ended, and
# the sensor marks the run as failed. A working run takes this lock as soon as it has imported its modules.
LOST_SECONDS = 60.0


def snapshot_sensor(config: SluiceConfig, destination: str, job: dg.JobDefinition) -> dg.SensorDefinition:
    """Returns the sensor that starts the runs of `job`, one at a time. After a failed run, the sensor waits before it starts the next run.
    The wait grows with each consecutive failure. The sensor also reports if the engine's sensor has stopped ticking.
    """

    instance = KeptInstance()

    @functools.cache
    def look() -> SnapshotDecisions:
        from sluice.cdc_engine.instance.tables.table_snapshots import SnapshotDecisions  # noqa: PLC0415  imports the engine's packages

        return SnapshotDecisions(config, destination)

    @dg.sensor(
        name=f"{destination}_snapshots",
        job=job,
        minimum_interval_seconds=INTERVAL_SECONDS_MIN,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=(
            f"Starts the snapshots of tables of {destination} that were requested. If the sensor is switched "
            "off, snapshots pause, and changes are buffered: no change is lost."
        ),
    )
    def sense(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        stay = definitions_stay()
        until = time.monotonic() + (idle_seconds(len(config.destinations), instance.of(context)) if stay() else 0.0)
        while True:
            events, cursor = silence(destination, config.destination_dir(destination), context.cursor)
            answer = _next_run(context)
            if answer is not NONE_OPEN or events or not _paused(stay, until):
                break
        if isinstance(answer, dg.SkipReason):
            return dg.SensorResult(skip_reason=answer, asset_events=events, cursor=cursor)
        return dg.SensorResult(run_requests=[answer], asset_events=events, cursor=cursor)

    def _next_run(context: dg.SensorEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        try:
            open_now = look().open()
            if not open_now:
                return NONE_OPEN
            directory = config.destination_dir(destination)
            newest, tags = (
                newest_of(context.instance, job.name, label_of(context), RUNS_LOOKED_AT),
                ledger_tags(directory),
            )
            # If the code location was renamed, an open run may belong to the location with the former name.
            former = dg.RunsFilter(job_name=job.name, statuses=UNDER_WAY, tags=tags)
            looked_at = [*newest, *(context.instance.get_run_records(former) if tags else ())]
            open_runs = {each.storage_id: each for each in looked_at if not each.dagster_run.is_finished}
            _end_lost_runs(context.instance, open_runs.values(), SnapshotRecords(directory))
            if open_runs:
                return dg.SkipReason(f"a run is reading {first_of([each.name for each in open_now], ', ')}")
            if waits := why_none_is_due(look().now()):
                return dg.SkipReason(waits)
        except SluiceError as error:
            return dg.SkipReason(f"{error.code}: {error}")
        failed = _failed_in_a_row([each.dagster_run.status for each in newest])
        wait = retry_seconds(failed) - (time.time() - (newest[0].end_time or 0.0)) if failed else 0.0
        if wait > 0:
            return dg.SkipReason(f"{failed} runs in a row failed; the next run begins in {wait:.0f} s")
        return dg.RunRequest(tags={"sluice/snapshot": destination, **tags})

    return sense


def _paused(stay: Callable[[], bool], until: float) -> bool:
    """Waits until it is time for the sensor to look again. Returns False if the sensor must return instead: its time is over, the process
    ends, or the process has loaded other definitions.
    """
    again_at = time.monotonic() + LOOK_SECONDS
    while stay() and again_at <= until and time.monotonic() < again_at:
        time.sleep(PAUSE_SECONDS)
    return stay() and again_at <= until


def _end_lost_runs(instance: dg.DagsterInstance, open_runs: Iterable[dg.RunRecord], records: SnapshotRecords) -> None:
    """Marks runs without a process as failed, because Dagster itself would wait for such a run forever. A run has no process if it started
    more than LOST_SECONDS ago and no run holds the reading lock, which a working run holds until it ends. Also ends runs that will never
    begin.
    """
    for each in open_runs:
        run = each.dagster_run
        if why := why_it_never_begins(each):
            instance.report_run_failed(run, f"{why}; the next run continues")
        begun = time.time() - (each.start_time or time.time())
        if run.status in HAS_PROCESS and begun > LOST_SECONDS and not records.are_read():
            instance.report_run_failed(
                run, ("the process of this run ended without reporting an end; the next run continues")
            )


def why_none_is_due(open_now: Iterable[tuple[SnapshotRecord, StepDecision]]) -> str:
    """Returns what the open snapshots wait for, or NONE_IN_PROGRESS if none waits. Returns "" if a run can advance one of them."""
    waits = []
    for record, decision in open_now:
        if decision.step == SnapshotStep.WAIT:
            waits.append(f"{record.name}: {decision.why}")
        elif decision.step != SnapshotStep.NOTHING:
            return ""
    return first_of(waits, "; ") if waits else NONE_IN_PROGRESS


def first_of(texts: Sequence[str], between: str) -> str:
    """Joins the first NAMED_MAX texts, and adds how many more there are. The result must be short, because Dagster stores the reason of
    each tick.
    """
    more = f" and {len(texts) - NAMED_MAX} more" if len(texts) > NAMED_MAX else ""
    return between.join(texts[:NAMED_MAX]) + more


def retry_seconds(failed_in_a_row: int) -> float:
    """Returns how many seconds the next run waits after this many consecutive failures."""
    return min(RETRY_SECONDS_MAX, RETRY_SECONDS_MIN * 2 ** (failed_in_a_row - 1)) if failed_in_a_row else 0.0


def _failed_in_a_row(newest_first: list[dg.DagsterRunStatus]) -> int:
    count = 0
    for status in newest_first:
        if status != dg.DagsterRunStatus.FAILURE:
            break
        count += 1
    return count
