"""Defines the job by which an operator approves a schema change, resumes or repairs a table, or forgets a consumer from Dagster's
launchpad, like `sluice schema`, `sluice repair` and `sluice consumer`.
"""

# no `from __future__ import annotations`: Dagster inspects the types of `context` and `config` at runtime

import enum
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import Field

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.errors import ActRefusedError, SluiceError
from sluice.cdc_engine.states import OF_THE_LAKE
from sluice.orchestration.base.one_destination import one_destination, with_destination
from sluice.orchestration.base.ports import MergeFailedError, Ports
from sluice.orchestration.run.decisions.waiting import waiting
from sluice.orchestration.run.merge_run import failure
from sluice.orchestration.run.rows.job import operated
from sluice.orchestration.run.rows.request import RepairRequest

JOB = "decide"
REASON_TAG = "sluice/reason"


class Act(enum.Enum):
    """The kinds of decisions."""

    show = "show"
    approve = "approve"
    resume = "resume"
    plan_repair = "plan_repair"
    repair = "repair"
    forget = "forget"


class Decision(dg.Config):
    """What the launchpad asks for."""

    act: Act = Field(
        default=Act.show,
        description=(
            "show: changes nothing; the run shows what waits for a decision, and what each decision would do. approve: a pending schema "
            "change, with one of its plans. resume: a stopped table. plan_repair: changes nothing; compares and shows what repair would "
            "do. repair: reads the rows that differ again. forget: a consumer with its cursor."
        ),
    )
    destination: str = ""  # `with_destination` accepts only names from conf/
    table: str = Field(default="", description="DATABASE.TABLE, for approve, resume and repair (empty: all tables).")
    statement: str = Field(
        default="",
        description="For approve: the statement that you have seen, so that another one is refused. Empty: the pending one.",
    )
    plan: str = Field(default="apply", description="For approve: one of the plans that show lists.")
    consumer: int = Field(default=0, description="For forget: the consumer's number.")
    reason: str = Field(default="", description=f"Why, for whoever reads it later: the run's tag {REASON_TAG}.")


def decide_job(settings: SluiceConfig, ports: Ports) -> dg.JobDefinition:
    """Returns the job. The running engine executes what was decided within seconds."""
    names = {*settings.destinations, *settings.groups}
    asked = with_destination(Decision, names)

    @dg.op(name="act_on_decision", config_schema=asked.to_config_schema().as_field())
    def decide(context: dg.OpExecutionContext) -> None:
        decision = asked(**context.op_config)
        try:
            name = one_destination(decision.destination, names)
            if decision.act not in CHANGE_NOTHING and not decision.reason.strip():
                raise ActRefusedError("`reason` is empty: write why this is decided")
            directory, told = settings.destination_dir(name), dict[str, dg.MetadataValue[Any]]()
            if decision.act is Act.show:
                told = {"told": dg.MetadataValue.md(waiting(context.instance, directory, name))}
            elif decision.act in REPAIRS:
                told = _repaired(context, settings, ports, decision)
            else:
                told = {"told": dg.MetadataValue.md(ACTS[decision.act](directory, decision))}
        except (SluiceError, MergeFailedError) as error:
            raise failure(error) from None
        _tag(context, decision)
        context.add_output_metadata(told)

    @dg.job(
        name=JOB,
        executor_def=dg.in_process_executor,
        description=(
            "Shows what waits for a decision and what each decision would do: launch it as it is. Approves a schema change, resumes a "
            "stopped table, repairs rows that differ, or forgets a consumer."
        ),
    )
    def job() -> None:
        decide()

    return job


def _tag(context: dg.OpExecutionContext, decision: Decision) -> None:
    if decision.reason:
        context.instance.add_run_tags(context.run_id, {REASON_TAG: decision.reason})


def _repaired(
    context: dg.OpExecutionContext, settings: SluiceConfig, ports: Ports, decision: Decision
) -> dict[str, dg.MetadataValue[Any]]:
    name = one_destination(decision.destination, settings.destinations)
    request = RepairRequest(destination=name, tables=(decision.table,) if decision.table else ())
    _tag(context, decision)  # before the first change, because a repair that fails has repaired tables
    return operated(context, settings, ports, request, only_plan=decision.act is Act.plan_repair)


def _approve(directory: Path, decision: Decision) -> str:
    from sluice.cdc_engine.acts import stopped_table  # noqa: PLC0415  only runs import the kernels

    seen = {f"{each.stop.database}.{each.stop.table}": each.record for each in stopped_table.pending_changes(directory)}
    pending = seen.get(decision.table)
    if decision.statement and pending is not None and pending.statement != decision.statement:
        raise ActRefusedError(
            f"another statement waits for review: `{pending.statement}`; look at its plans with `act: show`"
        )
    record = stopped_table.approve(directory, decision.table, decision.plan)
    return f"{decision.table}: approved `{record.statement}` as {decision.plan}; the table continues from there"


def _resume(directory: Path, decision: Decision) -> str:
    from sluice.cdc_engine.acts import stopped_table  # noqa: PLC0415  only runs import the kernels

    stop = stopped_table.stop_of(directory, decision.table)
    if stop.state in OF_THE_LAKE:
        raise ActRefusedError(
            f"{decision.table} stopped because of its Delta table ({stop.state}): `sluice schema resume {directory.name} "
            f"{decision.table}` looks at that table first; Materialize of its asset re-snapshots it"
        )
    stopped_table.resume(directory, decision.table)
    return f"{decision.table}: continues from its stop at {stop.position} ({stop.state})"


def _forget(directory: Path, decision: Decision) -> str:
    from sluice.cdc_engine.acts import consumer  # noqa: PLC0415  only runs import the kernels

    consumer.forget(directory, decision.consumer)
    return f"consumer {decision.consumer} of {directory.name} is forgotten with its cursor"


CHANGE_NOTHING = {Act.show, Act.plan_repair}
REPAIRS = {Act.plan_repair, Act.repair}
ACTS: dict[Act, Callable[[Path, Decision], str]] = {
    Act.approve: _approve,
    Act.resume: _resume,
    Act.forget: _forget,
}
