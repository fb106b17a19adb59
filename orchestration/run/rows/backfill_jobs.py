"""Defines the jobs of a backfill: one with times in its config, for the launchpad, and one per destination whose partitions are hours, for
Dagster's backfill page. Only people start them. `backfill` does the work.
"""

# There is no `from __future__ import annotations`, because Dagster inspects the types of `context` and `config` at
# runtime.

import dataclasses
import datetime as dt
import time
from typing import Any

import dagster as dg
from pydantic import Field

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.errors import SluiceError
from sluice.cdc_engine.time_text import SECOND_US, time_us
from sluice.orchestration.base.one_destination import one_destination, with_destination
from sluice.orchestration.base.ports import MergeFailedError, Ports
from sluice.orchestration.run.merge_run import failure
from sluice.orchestration.run.rows.backfill import Done, run_backfill
from sluice.orchestration.run.rows.report import listener_of
from sluice.orchestration.run.rows.request import BackfillRequest

JOB = "backfill_from_timestamp"
STEP = "take_again_from_timestamp"
TAG = "sluice/backfill"
# Servers keep their binlogs for 30 days by default. A run for a purged hour fails at once.
DAYS_ON_OFFER = 31
WAIT_SECONDS = 6 * 3600.0  # The longest wait for another backfill of the destination.
TABLES = '"database.table" each; all that are captured if empty'


class FromTimestamp(dg.Config):
    """What the launchpad asks for."""

    destination: str = ""  # `with_destination` accepts only names from conf/
    from_time: str = Field(
        default="-1h",
        description="Changes from this time on: ISO form with its zone, as 2026-03-01T12:00:00Z, or how long ago, as -10m.",
    )
    to_time: str = Field(default="", description="Changes before this time, in the same form; up to now if empty.")
    tables: list[str] = Field(default=[], description=f"{TABLES}.")
    into: str = Field(
        default="",
        description='"database.table" that is built from the one table in `tables`, as it was at `to_time`; the live table is not changed.',
    )


class OfPartition(dg.Config):
    """The settings of a run whose times are those of a partition."""

    tables: list[str] = Field(default=[], description=f"{TABLES}.")


def request_of(config: SluiceConfig, given: FromTimestamp, now_us: int) -> BackfillRequest:
    """Returns the request in a run's config. Raises ConfigurationError for an unknown destination or an invalid time."""
    name = one_destination(given.destination, config.destinations)
    to_us = time_us(given.to_time, now_us) if given.to_time else None
    from_us = time_us(given.from_time, now_us)
    return BackfillRequest(destination=name, from_us=from_us, to_us=to_us, tables=tuple(given.tables), into=given.into)


def backfill_job(settings: SluiceConfig, ports: Ports) -> dg.JobDefinition:
    """Returns the job with times in its config."""

    asked = with_destination(FromTimestamp, settings.destinations)

    @dg.op(name=STEP, config_schema=asked.to_config_schema().as_field())
    def take_again(context: dg.OpExecutionContext) -> None:
        try:
            request = request_of(settings, asked(**context.op_config), time.time_ns() // 1000)
        except SluiceError as error:
            raise failure(error) from None
        _backfill(context, settings, request, ports)

    @dg.job(
        name=JOB,
        executor_def=dg.in_process_executor,
        tags={TAG: "yes"},
        description=(
            "Applies the changes of an interval of the past again, from the source's binlog: rows that the lake has lost "
            "since are restored, newer rows stay, deleted rows stay deleted. `sluice backfill NAME --from TIME --plan` shows "
            "what it would do."
        ),
    )
    def job() -> None:
        take_again()

    return job


def hours(now: dt.datetime) -> dg.HourlyPartitionsDefinition:
    """Returns the hours that a source may still have, up to the current one."""
    first = (now - dt.timedelta(days=DAYS_ON_OFFER)).replace(hour=0, minute=0, second=0, microsecond=0)
    return dg.HourlyPartitionsDefinition(start_date=first, end_offset=1, timezone="UTC")


def by_hour_name(destination: str) -> str:
    """Returns the name of the job whose partitions are hours."""
    return f"backfill_{destination}_by_hour"


def backfill_by_hour_job(settings: SluiceConfig, destination: str, ports: Ports) -> dg.JobDefinition:
    """Returns the job with hours as partitions; each ends when the next one begins."""

    @dg.op(name=f"take_again_an_hour_of_{destination}")
    def take_again(context: dg.OpExecutionContext, config: OfPartition) -> None:
        hour = context.partition_time_window
        from_us, to_us = (round(each.timestamp()) * SECOND_US for each in (hour.start, hour.end))
        tables = tuple(config.tables)
        _backfill(
            context,
            settings,
            BackfillRequest(destination=destination, from_us=from_us, to_us=to_us, tables=tables),
            ports,
        )

    @dg.job(
        name=by_hour_name(destination),
        executor_def=dg.in_process_executor,
        partitions_def=hours(dt.datetime.now(dt.UTC)),
        tags={TAG: "yes"},
        description=f"As {JOB}, of {destination}, hour by hour: each partition is the changes that committed in its hour.",
    )
    def job() -> None:
        take_again()

    return job


def _backfill(context: dg.OpExecutionContext, config: SluiceConfig, request: BackfillRequest, ports: Ports) -> None:
    try:
        listener = listener_of(context, config, request.destination, "changes of a past interval applied again")
        # This run is a fork of a process that may have started before the source changed.
        now = config.with_sources_in_use()
        made = run_backfill(ports, now, request, listener, run=context.run.run_id, wait_seconds=WAIT_SECONDS)
    except (SluiceError, MergeFailedError) as error:
        raise failure(error) from None
    context.add_output_metadata(_of_all(request, made))


def _of_all(request: BackfillRequest, made: Done) -> dict[str, dg.MetadataValue[Any]]:
    return {
        "asked": dg.MetadataValue.text(str(request)),
        "start_position": dg.MetadataValue.text(made.begin),
        "end_position": dg.MetadataValue.text(made.end),
        "read_up_to": dg.MetadataValue.text(made.read_to),
        "tables": dg.MetadataValue.int(len(made.outcomes)),
        **({"left_out": dg.MetadataValue.json(made.refused)} if made.refused else {}),
        **({"rebuilt": dg.MetadataValue.json(dataclasses.asdict(made.rebuilt))} if made.rebuilt else {}),
    }
