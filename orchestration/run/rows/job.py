"""Defines the job for operations on rows. A run's config names the operation: a backfill, a repair or a snapshot. No sensor and no schedule
starts this job; only people start it.

Each destination also has a backfill job with hours as partitions, for Dagster's backfill page, where nobody can enter a config.
"""

# There is no `from __future__ import annotations`, because Dagster inspects the types of `context` and `config` at
# runtime.

import dataclasses
import datetime as dt
import enum
import time
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import Field

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.config.reading import archive_of_request
from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.time_text import SECOND_US, time_us
from sluice.orchestration.base.one_destination import one_destination, with_destination
from sluice.orchestration.base.ports import Ports
from sluice.orchestration.run.merge_run import as_failure
from sluice.orchestration.run.rows.backfill import Done, plan_backfill, run_backfill
from sluice.orchestration.run.rows.merged_run import backfill_of_run
from sluice.orchestration.run.rows.operation import RowsRun
from sluice.orchestration.run.rows.repair import Repaired, plan_repair, run_repair
from sluice.orchestration.run.rows.report import listener_of
from sluice.orchestration.run.rows.request import (
    BackfillRequest,
    RepairRequest,
    SnapshotRequest,
)
from sluice.orchestration.run.snapshot_run import request_snapshots

JOB = "operate_on_rows"
# The step's name differs from the job's name, because Dagster cannot distinguish a step and a job with the same name.
STEP = "rows"
TAG = "sluice/rows"
# Dagster's backfill page offers the hours of this many days. MySQL keeps its binlogs for 30 days by default. A run for an hour whose binlog
# was purged fails at once.
DAYS_ON_OFFER = 31
# A run waits at most this long for the end of another operation on the destination's rows, and then fails.
WAIT_SECONDS = 6 * 3600.0
FROM_TIME = "-1h"
TABLES = 'Tables, as "database.table". Default: all captured tables'
REPORTED_AS = {BackfillRequest: "changes of a past interval applied again", RepairRequest: "repaired"}
Request = BackfillRequest | RepairRequest | SnapshotRequest
Metadata = dict[str, dg.MetadataValue[Any]]


class OperationKind(enum.Enum):
    """The operations of the job, which the field `operation` of the launchpad offers."""

    backfill = "backfill"
    repair = "repair"
    snapshot = "snapshot"


class RowsConfig(dg.Config):
    """The config of a run that operates on rows. Dagster's launchpad shows its fields. Fields that do not belong to the chosen operation
    must have their defaults.
    """

    operation: OperationKind = Field(
        default=OperationKind.backfill,
        description=(
            "backfill: applies the changes between from_time and to_time again. repair: compares the tables with the source, and reads "
            "the differing rows again. snapshot: requests that the snapshot job reads all rows again and replaces the tables."
        ),
    )
    destination: str = ""  # `with_destination` replaces this field and accepts only names from conf/.
    tables: list[str] = Field(default=[], description=f"{TABLES}.")
    only_plan: bool = Field(default=False, description="Report what the run would do; change nothing.")
    from_time: str = Field(
        default="",
        description=(
            f"For a backfill: changes from this time on, {FROM_TIME} if empty. ISO form with its zone, as 2026-03-01T12:00:00Z, or how "
            "long ago, as -10m."
        ),
    )
    to_time: str = Field(
        default="", description="For a backfill: changes before this time, in the same form. Default: up to now."
    )
    run: str = Field(
        default="",
        description=(
            "For a backfill: the id of a Dagster run, instead of times. The times are then those of the changes that this run merged, and "
            "the tables are those into which it merged them."
        ),
    )
    gtids: str = Field(
        default="",
        description=(
            "For a backfill: exactly the transactions of this GTID set, instead of times, as UUID:5-7:9. For MariaDB: of this list of "
            "GTIDs, as 0-1-20,0-1-21. Not with `into`."
        ),
    )
    into: str = Field(
        default="",
        description=(
            'For a backfill: "database.table" that is built from the one table in `tables`, as it was at `to_time`; the captured table '
            "does not change."
        ),
    )
    archive: str = Field(
        default="",
        description=(
            "For a backfill: read these binlog files alone, without the source; an absolute folder, or a prefix of an object store."
        ),
    )
    schemas: str = Field(
        default="",
        description=(
            "For a backfill with `archive`: a dump of `mysqldump --no-data`, or a saved schema.jsonl; the destination's schema history if "
            "empty."
        ),
    )
    where: str = Field(
        default="", description="For a snapshot: an SQL condition; the tables then have only the rows that match it."
    )
    settle_seconds: float = Field(
        default=RepairRequest.settle_seconds,
        description="For a repair: seconds to wait until the lake has reached the position of the comparison.",
    )


# For each operation, its fields in RowsConfig, without the fields that all operations have.
FIELDS = {
    OperationKind.backfill: {"only_plan", "from_time", "to_time", "run", "gtids", "into", "archive", "schemas"},
    OperationKind.repair: {"only_plan", "settle_seconds"},
    OperationKind.snapshot: {"where"},
}


class OfPartition(dg.Config):
    """The config of a run of a backfill job with hours as partitions. The partition determines the times."""

    tables: list[str] = Field(default=[], description=f"{TABLES}.")


def request_of(config: SluiceConfig, given: RowsConfig, now_us: int) -> Request:
    """Converts a run's config to a request. Raises ConfigurationError for an unknown destination, an invalid time, or a field of another
    operation.
    """
    destination, tables = one_destination(given.destination, config.destinations), tuple(given.tables)
    default = RowsConfig()
    others = set().union(*FIELDS.values()) - FIELDS[given.operation]
    if unfit := [each for each in sorted(others) if getattr(given, each) != getattr(default, each)]:
        raise ConfigurationError(
            f"a {given.operation.value} has no {', '.join(unfit)}: leave these fields out, or choose another operation"
        )
    match given.operation:
        case OperationKind.repair:
            return RepairRequest(destination=destination, tables=tables, settle_seconds=given.settle_seconds)
        case OperationKind.snapshot:
            return SnapshotRequest(destination=destination, tables=tables, where=given.where)
        case OperationKind.backfill:
            return backfill_of(config, given, now_us)


def backfill_of(config: SluiceConfig, given: RowsConfig, now_us: int, folder: Path | None = None) -> BackfillRequest:
    """Returns the backfill that a config names: of an interval, of a run, or of a GTID set. Relative paths in the fields `archive` and
    `schemas` start in `folder`. If `folder` is None, relative paths are refused. Raises ConfigurationError if the config names more
    than one of an interval, a run and a GTID set, or a GTID set together with `into`.
    """
    archive, schemas = archive_of_request(given.archive, given.schemas, folder)
    return dataclasses.replace(_changes_of(config, given, now_us), archive=archive, schemas=schemas)


def _changes_of(config: SluiceConfig, given: RowsConfig, now_us: int) -> BackfillRequest:
    destination, tables = one_destination(given.destination, config.destinations), tuple(given.tables)
    if sum(map(bool, (given.from_time or given.to_time, given.run, given.gtids))) > 1:
        raise ConfigurationError(
            "name the changes by from_time and to_time, or by run, or by gtids, and leave the other fields empty"
        )
    if given.gtids and given.into:
        raise ConfigurationError("into builds a table as it was at a time: set from_time and to_time instead of gtids")
    if given.run:
        return backfill_of_run(config, destination, given.run, tables, given.into)
    if given.gtids:
        return BackfillRequest(destination=destination, from_us=0, to_us=None, tables=tables, gtids=given.gtids)
    return BackfillRequest(
        destination=destination,
        from_us=time_us(given.from_time or FROM_TIME, now_us),
        to_us=time_us(given.to_time, now_us) if given.to_time else None,
        tables=tables,
        into=given.into,
    )


def rows_job(settings: SluiceConfig, ports: Ports) -> dg.JobDefinition:
    """Returns the job `operate_on_rows`. At the end of a repair, its run reports results of the check `equals_lake` for the repaired
    tables.
    """
    config_class = with_destination(RowsConfig, settings.destinations)

    @dg.op(name=STEP, config_schema=config_class.to_config_schema().as_field())
    def rows(context: dg.OpExecutionContext) -> None:
        given = config_class(**context.op_config)
        with as_failure():
            request = request_of(settings, given, time.time_ns() // 1000)
            context.add_output_metadata(operated(context, settings, ports, request, only_plan=given.only_plan))

    @dg.job(
        name=JOB,
        executor_def=dg.in_process_executor,
        tags={TAG: "yes"},
        description=(
            "Corrects rows of the lake while the stream continues: newer rows stay, deleted rows stay "
            "deleted. `operation: backfill` applies the changes of an interval of the past again, as `sluice "
            "backfill` does; `operation: repair` reads the differing rows again from the source, as "
            "`sluice repair` does; `operation: snapshot` requests a snapshot, as `sluice snapshot start` "
            "does."
        ),
    )
    def job() -> None:
        rows()

    return job


def hours(now: dt.datetime) -> dg.HourlyPartitionsDefinition:
    """Returns an hourly partition for each hour of the last DAYS_ON_OFFER days, up to the current hour. Sources have usually purged the
    binlogs of earlier hours.
    """
    first = (now - dt.timedelta(days=DAYS_ON_OFFER)).replace(hour=0, minute=0, second=0, microsecond=0)
    return dg.HourlyPartitionsDefinition(start_date=first, end_offset=1, timezone="UTC")


def by_hour_name(destination: str) -> str:
    """Returns the name of a destination's backfill job with hours as partitions."""
    return f"backfill_{destination}_by_hour"


def backfill_by_hour_job(settings: SluiceConfig, destination: str, ports: Ports) -> dg.JobDefinition:
    """Returns the backfill job with hours as partitions. Each run applies the changes of its hour again."""

    @dg.op(name=f"hour_of_rows_of_{destination}")
    def hour_of_rows(context: dg.OpExecutionContext, config: OfPartition) -> None:
        hour = context.partition_time_window
        from_us, to_us = (round(each.timestamp()) * SECOND_US for each in (hour.start, hour.end))
        request = BackfillRequest(destination=destination, from_us=from_us, to_us=to_us, tables=tuple(config.tables))
        with as_failure():
            context.add_output_metadata(operated(context, settings, ports, request))

    @dg.job(
        name=by_hour_name(destination),
        executor_def=dg.in_process_executor,
        partitions_def=hours(dt.datetime.now(dt.UTC)),
        tags={TAG: "yes"},
        description=(
            f"Backfills of {destination} hour by hour, as {JOB} makes them: each partition is the changes that committed in its hour."
        ),
    )
    def job() -> None:
        hour_of_rows()

    return job


def operated(
    context: dg.OpExecutionContext,
    settings: SluiceConfig,
    ports: Ports,
    request: Request,
    *,
    only_plan: bool = False,
) -> Metadata:
    """Plans the operation and carries it out, unless `only_plan`. A snapshot is only requested: the snapshot job reads the rows. Reports
    each table as an event of the run, and returns metadata of the whole operation. Raises SluiceError or MergeFailedError, with a message
    for users, if the operation fails.
    """
    # This process may be a fork of a process that started before a failover. So it reads again which source is in use.
    config = settings.with_sources_in_use()
    if isinstance(request, SnapshotRequest):
        request_snapshots(context, config, request.destination, request.tables, request.where)
        return {}
    run = RowsRun(
        ports=ports,
        config=config,
        destination=request.destination,
        listener=listener_of(context, config, request.destination, REPORTED_AS[type(request)]),
        run=context.run.run_id,
        wait_seconds=WAIT_SECONDS,
    )
    if isinstance(request, RepairRequest):
        differing = plan_repair(config, request)
        return _of_repair(Repaired(plan=differing) if only_plan else run_repair(run, request, differing))
    if only_plan:
        return {"plan": dg.MetadataValue.json(plan_backfill(config, request).to_json())}
    return _of_backfill(request, run_backfill(run, request))


def _of_backfill(request: BackfillRequest, made: Done) -> Metadata:
    return {
        "request": dg.MetadataValue.text(str(request)),
        "start_position": dg.MetadataValue.text(made.begin),
        "end_position": dg.MetadataValue.text(made.end),
        "read_up_to": dg.MetadataValue.text(made.read_to),
        "tables": dg.MetadataValue.int(len(made.outcomes)),
        **({"left_out": dg.MetadataValue.json(made.refused)} if made.refused else {}),
        **({"rebuilt": dg.MetadataValue.json(dataclasses.asdict(made.rebuilt))} if made.rebuilt else {}),
    }


def _of_repair(made: Repaired) -> Metadata:
    """Returns the metadata of a repair: the differences per table, and the results."""
    lines = [
        f"- {each.name}: "
        + (each.refused or ", ".join(f"{count} {kind}" for kind, count in each.keys.items() if count))
        for each in made.plan
    ]
    return {
        "differing_tables": dg.MetadataValue.int(len(made.plan)),
        "found": dg.MetadataValue.md("\n".join(lines) or "nothing differs"),
        "repaired_tables": dg.MetadataValue.int(len(made.outcomes)),
        "equal_again": dg.MetadataValue.int(sum(each.equal for each in made.after)),
        "left_out": dg.MetadataValue.json(dict(made.refused)),
    }
