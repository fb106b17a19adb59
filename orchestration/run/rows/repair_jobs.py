"""Defines the job that repairs: it compares, reads the rows that differ again, and compares once more. `repair` does the work.

Only people start it."""

# There is no `from __future__ import annotations`, because Dagster inspects the types of `context` and `config` at
# runtime.

from typing import Any

import dagster as dg
from pydantic import Field

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.errors import SluiceError
from sluice.orchestration.base.one_destination import one_destination, with_destination
from sluice.orchestration.base.ports import MergeFailedError, Ports
from sluice.orchestration.run.merge_run import failure
from sluice.orchestration.run.rows.repair import Repaired, plan_repair, run_repair
from sluice.orchestration.run.rows.report import listener_of
from sluice.orchestration.run.rows.request import RepairRequest

JOB = "repair_differences"
STEP = "take_differences_anew"  # It differs from the job's name, because Dagster would not distinguish the two.
TAG = "sluice/repair"
WAIT_SECONDS = 6 * 3600.0  # The longest wait for a backfill or another repair of the destination.


class OfDestination(dg.Config):
    """What the launchpad asks for."""

    destination: str = ""  # `with_destination` accepts only names from conf/
    tables: list[str] = Field(default=[], description='"database.table" each; all that are captured if empty.')
    only_plan: bool = Field(default=False, description="Compare and report what would be done; change nothing.")
    settle_seconds: float = Field(
        default=300.0, description="How long to wait until the merges have reached the source."
    )


def request_of(config: SluiceConfig, given: OfDestination) -> RepairRequest:
    """Returns the request in a run's config. Raises ConfigurationError for an unknown destination."""
    name = one_destination(given.destination, config.destinations)
    return RepairRequest(destination=name, tables=tuple(given.tables), settle_seconds=given.settle_seconds)


def repair_job(settings: SluiceConfig, ports: Ports) -> dg.JobDefinition:
    """Returns the job. Its last events are the checks `equals_lake` of the repaired tables."""

    asked = with_destination(OfDestination, settings.destinations)

    @dg.op(name=STEP, config_schema=asked.to_config_schema().as_field())
    def repair(context: dg.OpExecutionContext) -> None:
        config = asked(**context.op_config)
        try:
            request = request_of(settings, config)
            made = repaired(context, settings, ports, request, only_plan=config.only_plan)
        except (SluiceError, MergeFailedError) as error:
            raise failure(error) from None
        context.add_output_metadata(told_of(made))

    @dg.job(
        name=JOB,
        executor_def=dg.in_process_executor,
        tags={TAG: "yes"},
        description=(
            "Compares the Delta tables with their source, and reads the rows that differ again while the stream continues: "
            "newer rows of the stream stay, deleted rows stay deleted. `sluice repair NAME --plan` shows what it would do."
        ),
    )
    def job() -> None:
        repair()

    return job


def repaired(
    context: dg.OpExecutionContext, settings: SluiceConfig, ports: Ports, request: RepairRequest, *, only_plan: bool
) -> Repaired:
    """Compares, and, unless `only_plan`, repairs. Reports each table as an event of the run. Raises SluiceError, MergeFailedError."""
    # This run is a fork of a process that may have started before the source changed.
    now = settings.with_sources_in_use()
    plan = plan_repair(now, request)
    if only_plan:
        return Repaired(plan=plan)
    listener = listener_of(context, now, request.destination, "repaired")
    return run_repair(ports, now, request, plan, listener, run=context.run.run_id, wait_seconds=WAIT_SECONDS)


def told_of(made: Repaired) -> dict[str, dg.MetadataValue[Any]]:
    """Returns the metadata of a repair, or of its plan: what differs per table, and what was done."""
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
