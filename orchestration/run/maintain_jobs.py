"""Defines the job that maintains a destination's Delta tables, and its schedules for OPTIMIZE and VACUUM."""

# There is no `from __future__ import annotations`, because Dagster inspects the types of `context` and `config` at
# runtime.

import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.errors import SluiceError
from sluice.orchestration.base.batch_reference import ledger_of
from sluice.orchestration.base.open_runs import (
    UNDER_WAY,
    add_ledger_tags,
    ledger_tags,
    location_label,
    why_it_never_begins,
)
from sluice.orchestration.base.ports import Ports
from sluice.orchestration.base.shown_tables import shown_tables
from sluice.orchestration.base.table_catalog import delta_key, size_metadata
from sluice.orchestration.run.maintain_run import Looked, MaintainRequest, run_maintenance
from sluice.orchestration.run.merge_run import as_failure

if TYPE_CHECKING:
    from sluice.spark_jobs.maintain.tables import Maintained

TAG = "sluice/maintenance"
# While a run is open, the schedule of the same act (OPTIMIZE or VACUUM) requests no other run. If a run has been open for longer than this,
# its process was probably killed, so the schedule marks the run as failed and requests another one. If the process still works, the run
# lock prevents the two runs from maintaining a table at the same time.
LOST_SECONDS = 24 * 3600.0


class Maintenance(dg.Config):
    """The config of a run that maintains Delta tables. Dagster's launchpad shows its fields."""

    tables: list[str] = Field(default=[], description='Tables, as "database.table". Default: all tables in the lake.')
    optimize: bool = Field(default=True, description="Rewrite files where the benefit is large enough.")
    force: bool = Field(default=False, description="Rewrite files also where the benefit is small.")
    vacuum: bool = Field(
        default=False, description="Remove files that left the table longer ago than the retention in conf/."
    )


def maintain_name(destination: str) -> str:
    """Returns the name of the step that maintains the Delta tables of a destination. The job's name is the same with `_job` appended."""
    return f"maintain_{destination}"


def maintain_job(settings: SluiceConfig, destination: str, ports: Ports) -> dg.JobDefinition:
    """Returns the job that maintains the Delta tables of a destination. Its only step reports an observation of each current-state table
    that it maintained and that has an asset of its own.
    """

    @dg.op(name=maintain_name(destination))
    def maintain(context: dg.OpExecutionContext, config: Maintenance) -> None:
        shown = shown_tables(settings, destination)

        def done(made: "Maintained") -> None:
            if made.act != "nothing" and shown.has_asset(made.name):
                key = delta_key(destination, made.name)
                context.log_event(dg.AssetObservation(key, metadata=_of_table(made)))

        request = MaintainRequest(
            destination=destination,
            tables=tuple(config.tables),
            optimize=config.optimize,
            vacuum=config.vacuum,
            force=config.force,
        )
        with as_failure():
            add_ledger_tags(context, settings.destination_dir(destination))
            made = run_maintenance(ports, settings, request, context.log.info, done, run=context.run.run_id)
        context.add_output_metadata(_of_all(made))
        if made.failed:
            raise dg.Failure(description="; ".join(f"{name}: {why}" for name, why in sorted(made.failed.items())))

    @dg.job(
        name=f"{maintain_name(destination)}_job",
        executor_def=dg.in_process_executor,
        tags={TAG: destination},
        description=(
            f"Maintains the Delta tables of {destination} between its merges: rewrites small files, and files "
            "with rows that are marked as deleted, where the benefit is large enough, and removes files that "
            "no table version within the retention needs."
        ),
    )
    def job() -> None:
        maintain()

    return job


DESCRIPTIONS = {
    "optimize": "Compacts small files of the Delta tables of {}. Switched on by `maintenance.optimize` in conf/.",
    "vacuum": (
        "Removes files of the Delta tables of {} that no version within the retention needs. Switched on by "
        "`maintenance.vacuum` in conf/."
    ),
}


def maintain_schedules(config: SluiceConfig, destination: str, job: dg.JobDefinition) -> list[dg.ScheduleDefinition]:
    """Returns two schedules of the maintenance job, one for OPTIMIZE and one for VACUUM. A schedule is switched on at first if its setting
    (`maintenance.optimize` or `maintenance.vacuum`) is not empty. Otherwise it is switched off at first. If a person switches it on,
    OPTIMIZE runs every hour, and VACUUM every Sunday.
    """
    given, minute = config.destinations[destination].maintenance, minute_of(destination)
    directory = config.destination_dir(destination)
    hourly, sundays = f"{minute} * * * *", f"{minute} 4 * * 0"
    return [
        _schedule(destination, job, "optimize", given.optimize_at(hourly), hourly, Maintenance(), directory=directory),
        _schedule(
            destination,
            job,
            "vacuum",
            given.vacuum,
            sundays,
            Maintenance(optimize=False, vacuum=True),
            directory=directory,
        ),
    ]


def minute_of(destination: str) -> int:
    """Returns the minute of the hour at which a destination's schedules start. The minute is a hash of the destination's name, so that the
    runs of many destinations do not all start together.
    """
    return zlib.crc32(destination.encode()) % 60


def _schedule(  # noqa: PLR0917  two callers, above
    destination: str, job: dg.JobDefinition, act: str, schedule: str, usual: str, given: Maintenance, *, directory: Path
) -> dg.ScheduleDefinition:
    running, stopped = dg.DefaultScheduleStatus.RUNNING, dg.DefaultScheduleStatus.STOPPED

    def evaluated(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        try:
            tags = ledger_tags(directory)
        except SluiceError as error:
            return dg.SkipReason(f"{error.code}: {error}")
        working = []
        for each in _own_open_runs(context.instance, job.name, tags):
            if why := _why_lost(each):
                context.instance.report_run_failed(each.dagster_run, why)
            else:
                working.append(each)
        if any(_does(destination, each, act) for each in working):
            return dg.SkipReason(f"a run of {job.name} is in progress")
        return dg.RunRequest(run_config=dg.RunConfig(ops={maintain_name(destination): given}), tags=tags)

    return dg.ScheduleDefinition(
        name=f"{act}_{destination}_schedule",
        job=job,
        execution_fn=evaluated,
        description=DESCRIPTIONS[act].format(destination),
        cron_schedule=schedule or usual,
        execution_timezone="UTC",
        default_status=running if schedule else stopped,
    )


def _own_open_runs(instance: dg.DagsterInstance, job_name: str, tags: Mapping[str, str]) -> list[dg.RunRecord]:
    """Returns the open runs of this destination's maintenance job. Leaves out runs of another installation whose destination and job have
    the same names in another code location. `tags` are the tags of this destination's ledger. A run with the tag of another ledger is still
    in the result if the newest run with `tags` has the same code location, because a new ledger has then replaced a lost one.
    """
    open_runs = instance.get_run_records(dg.RunsFilter(job_name=job_name, statuses=UNDER_WAY))
    of_ledger = [each for each in open_runs if ledger_of(each.dagster_run.tags) in {"", *tags.values()}]
    if len(of_ledger) == len(open_runs) or not tags:
        return of_ledger
    newest = instance.get_run_records(dg.RunsFilter(job_name=job_name, tags=tags), limit=1)
    here = {location_label(each.dagster_run) for each in newest} - {""}
    return [each for each in open_runs if each in of_ledger or location_label(each.dagster_run) in here]


def _does(destination: str, record: dg.RunRecord, act: str) -> bool:
    """Returns whether a run of the maintenance job does an act: "optimize" or "vacuum". A run with an empty config does OPTIMIZE."""
    ops: Any = record.dagster_run.run_config.get("ops") or {}
    given = ops.get(maintain_name(destination), {}).get("config") or {}
    return bool(given.get(act, getattr(Maintenance(), act)))


def _why_lost(record: dg.RunRecord) -> str:
    """Returns why an open run must be marked as failed, or "" if it may still work."""
    if record.start_time and time.time() - record.start_time > LOST_SECONDS:
        return "the run has lasted for a day, so its process must have ended"
    return why_it_never_begins(record)


def _of_table(made: "Maintained") -> dict[str, dg.MetadataValue[Any]]:
    numbers = {
        "files_before": made.before.files,
        "files_after": made.after.files,
        "bytes_before": made.before.bytes,
        "bytes_after": made.after.bytes,
        "marked_rows_before": made.before.deleted,
        "marked_rows_after": made.after.deleted,
        "files_removed": made.removed_files,
        "bytes_removed": made.removed_bytes,
        "delta_version": made.version,
    }
    return {
        "maintenance": dg.MetadataValue.text(f"{made.act}: {made.reason}"),
        "maintenance_seconds": dg.MetadataValue.float(made.seconds),
        **{name: dg.MetadataValue.int(number) for name, number in numbers.items()},
        **size_metadata(made.after.rows - made.after.deleted, made.after.bytes),
    }


def _of_all(made: Looked) -> dict[str, dg.MetadataValue[Any]]:
    acts = [each.act for each in made.done]
    return {
        "tables": dg.MetadataValue.int(len({each.name for each in made.done})),
        "rewritten": dg.MetadataValue.int(acts.count("compact") + acts.count("cluster")),
        "vacuumed": dg.MetadataValue.int(acts.count("vacuum")),
        "retention_hours": dg.MetadataValue.float(made.hours),
        "consistent_snapshots_removed": dg.MetadataValue.int(made.snapshots_removed),
        "failed": dg.MetadataValue.json(made.failed),
    }
