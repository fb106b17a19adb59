"""Defines the job for decisions that an operator makes in Dagster's launchpad: approve a schema change, resume or repair a table, or
forget a consumer. The commands `sluice schema`, `sluice repair` and `sluice consumer` do the same.
"""

# There is no `from __future__ import annotations`, because Dagster inspects the types of `context` and `config` at runtime.

import enum
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import Field

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.errors import ActRefusedError
from sluice.cdc_engine.states import OF_THE_LAKE
from sluice.orchestration.base.markdown import code
from sluice.orchestration.base.one_destination import one_destination, with_destination
from sluice.orchestration.base.ports import Ports
from sluice.orchestration.base.shown_tables import shown_tables
from sluice.orchestration.run.decisions.launchpad import JOB, STEP, Launchpad
from sluice.orchestration.run.decisions.waiting import waiting
from sluice.orchestration.run.merge_run import as_failure
from sluice.orchestration.run.rows.job import operated
from sluice.orchestration.run.rows.request import RepairRequest

REASON_TAG = "sluice/reason"


class Act(enum.Enum):
    """The kinds of decisions, which the field `act` of the launchpad offers."""

    show = "show"
    approve = "approve"
    resume = "resume"
    plan_repair = "plan_repair"
    repair = "repair"
    forget = "forget"


class Decision(dg.Config):
    """The config of a run that records a decision. Dagster's launchpad shows its fields."""

    act: Act = Field(
        default=Act.show,
        description=(
            "show: changes nothing; the run shows what waits for a decision, what each decision would do, and links to this launchpad "
            "with its config. approve: approves a pending schema change with one of its plans. resume: resumes a "
            "stopped table. plan_repair: changes nothing; compares and shows what repair would do. repair: reads the "
            "differing rows again and corrects them. forget: deletes a consumer's cursor."
        ),
    )
    destination: str = ""  # `with_destination` replaces this field and accepts only names from conf/.
    table: str = Field(
        default="", description="DATABASE.TABLE, for approve, resume and repair (repair: all tables if empty)."
    )
    position: str = Field(
        default="",
        description=(
            "For approve and resume: the position that show gives for the statement or the stop. If the "
            "table is now at another statement or stop, the decision is refused."
        ),
    )
    plan: str = Field(default="", description="For approve: one of the plans that show lists.")
    consumer: int = Field(default=0, description="For forget: the consumer's number.")
    reason: str = Field(default="", description=f"Why you decide this. Stored as the tag {REASON_TAG} of the run.")


CHANGE_NOTHING = {Act.show, Act.plan_repair}
REPAIRS = {Act.plan_repair, Act.repair}
# NEEDED has the fields that each act requires, and POSSIBLE those that it accepts.
NEEDED: dict[Act, tuple[str, ...]] = {
    Act.show: (),
    Act.approve: ("table", "position", "plan"),
    Act.resume: ("table", "position"),
    Act.plan_repair: (),
    Act.repair: (),
    Act.forget: ("consumer",),
}
POSSIBLE: dict[Act, tuple[str, ...]] = {**NEEDED, Act.plan_repair: ("table",), Act.repair: ("table",)}
FIELDS = ("table", "position", "plan", "consumer")


def problem_of(decision: Decision) -> str:
    """Returns why the fields of a decision do not match its act, or "" if they match."""
    act, reason = decision.act, decision.reason.strip()
    given = [field for field in FIELDS if getattr(decision, field)]
    if missing := [field for field in NEEDED[act] if field not in given]:
        return f"`{missing[0]}` is empty: `act: show` shows what {act.value} needs"
    if unused := [field for field in given if field not in POSSIBLE[act]]:
        return f"`{unused[0]}` does not belong to {act.value}: empty this field, or choose another act"
    if decision.table and "." not in decision.table:
        return f"`table` is {decision.table!r}: write DATABASE.TABLE"
    if act not in CHANGE_NOTHING and not reason:
        return "`reason` is empty: write why this is decided"
    return (
        ""
        if reason.isprintable()
        else "`reason` has a line break or a character that cannot be printed: write one line"
    )


def decide_job(settings: SluiceConfig, ports: Ports) -> dg.JobDefinition:
    """Returns the job for decisions. A run of the job carries out a repair itself. For any other decision, the run records the decision,
    and the running engine executes it within seconds. With `act: show` or `act: plan_repair`, the run changes nothing.
    """
    names = set(settings.streams)
    config_class = with_destination(Decision, names)

    @dg.op(name=STEP, config_schema=config_class.to_config_schema().as_field())
    def decide(context: dg.OpExecutionContext) -> None:
        decision = config_class(**context.op_config)
        with as_failure():
            name = one_destination(decision.destination, names)
            if problem := problem_of(decision):
                raise ActRefusedError(problem)
            # The reason is stored first. If the run is killed after a change, the reason for the change is then known.
            _tag(context, decision)
            directory, metadata = settings.destination_dir(name), dict[str, dg.MetadataValue[Any]]()
            if decision.act is Act.show:
                # A group of destinations has no assets of tables.
                shown = shown_tables(settings, name) if name in settings.destinations else None
                listed = waiting(context.instance, directory, name, Launchpad.of(context.run), shown)
                metadata = {"result": dg.MetadataValue.md(listed)}
            elif decision.act in REPAIRS:
                metadata = _repaired(context, settings, ports, decision)
            else:
                metadata = {"result": dg.MetadataValue.md(ACTS[decision.act](directory, decision))}
            context.add_output_metadata(metadata)

    @dg.job(
        name=JOB,
        executor_def=dg.in_process_executor,
        description=(
            "With the default config, shows what waits for a decision, what each decision would do, and "
            "links to the launchpad with its config. Approves a schema change, resumes a stopped table, "
            "repairs rows that differ, or forgets a consumer."
        ),
    )
    def job() -> None:
        decide()

    return job


def _tag(context: dg.OpExecutionContext, decision: Decision) -> None:
    if reason := decision.reason.strip():
        context.instance.add_run_tags(context.run_id, {REASON_TAG: reason})


def _repaired(
    context: dg.OpExecutionContext, settings: SluiceConfig, ports: Ports, decision: Decision
) -> dict[str, dg.MetadataValue[Any]]:
    name = one_destination(decision.destination, settings.destinations)
    request = RepairRequest(destination=name, tables=(decision.table,) if decision.table else ())
    return operated(context, settings, ports, request, only_plan=decision.act is Act.plan_repair)


def _approve(directory: Path, decision: Decision) -> str:
    from sluice.cdc_engine.acts import stopped_table  # noqa: PLC0415  only runs import the kernels

    record = stopped_table.approve(directory, decision.table, decision.plan, position=decision.position, replaces=False)
    return f"{code(decision.table)}: approved {code(record.statement)} as {decision.plan}; the table continues from this statement"


def _resume(directory: Path, decision: Decision) -> str:
    from sluice.cdc_engine.acts import stopped_table  # noqa: PLC0415  only runs import the kernels

    stop = stopped_table.stop_of(directory, decision.table, position=decision.position)
    if stop.state in OF_THE_LAKE:
        raise ActRefusedError(
            f"{decision.table} stopped because of its Delta table ({stop.state}): run `sluice schema resume "
            f"{directory.name} {shlex.quote(decision.table)}`, which checks the Delta table first, or re-snapshot the table with "
            '"Materialize" on its asset'
        )
    stopped_table.resume(directory, decision.table, position=decision.position)
    return f"{code(decision.table)}: continues from the position of its stop, {stop.position} ({stop.state})"


def _forget(directory: Path, decision: Decision) -> str:
    from sluice.cdc_engine.acts import consumer  # noqa: PLC0415  only runs import the kernels

    consumer.forget(directory, decision.consumer)
    return f"consumer {decision.consumer} of {directory.name} is forgotten with its cursor"


ACTS: dict[Act, Callable[[Path, Decision], str]] = {
    Act.approve: _approve,
    Act.resume: _resume,
    Act.forget: _forget,
}
