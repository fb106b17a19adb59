"""Describes what waits for an operator's decision, and what each decision would do. The job `decide` shows it; it changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg

from sluice.cdc_engine.contracts import StoppedTable
from sluice.cdc_engine.destination_files import read_ledger
from sluice.cdc_engine.states import OF_THE_LAKE, TableState, way_out
from sluice.orchestration.base.table_catalog import read_tables, source_key
from sluice.orchestration.checks.equality import EQUAL_CHECK

NOTHING = "nothing waits for a decision"


def waiting(instance: dg.DagsterInstance, directory: Path, destination: str) -> str:
    """Returns as Markdown: pending schema changes with their plans, stopped tables, tables that differ, and consumers. Raises MetaError."""
    parts = (
        ("Schema changes (`act: approve`)", list(_schema_changes(directory))),
        ("Stopped tables (`act: resume`)", list(_stops(directory, destination))),
        (
            "Tables that differ (`act: plan_repair`, then `act: repair`)",
            list(_differing(instance, directory, destination)),
        ),
        ("Consumers (`act: forget`)", list(_consumers(directory))),
    )
    return "\n\n".join("\n\n".join([f"## {title}", *lines]) for title, lines in parts if lines) or NOTHING


def _schema_changes(directory: Path) -> Iterator[str]:
    from sluice.cdc_engine.acts import stopped_table  # noqa: PLC0415  only runs import the kernels

    for each in stopped_table.pending_changes(directory):
        yield f"**{each.stop.database}.{each.stop.table}**\n\n{each.stop.reason}"


def _stops(directory: Path, destination: str) -> Iterator[str]:
    for stop in read_ledger(directory).stopped_tables:
        if stop.state != TableState.DDL_HELD:
            yield _stop(stop, destination)


def _stop(stop: StoppedTable, destination: str) -> str:
    name = f"{stop.database}.{stop.table}"
    done = f"resume continues from its stop at {stop.position} and reads what follows again"
    if stop.state in OF_THE_LAKE:
        done = f"resume is refused here: {way_out(stop.state, destination, name)}"
    return f"- **{name}** ({stop.state}): {stop.reason}. {done}"


def _differing(instance: dg.DagsterInstance, directory: Path, destination: str) -> Iterator[str]:
    """Yields the tables whose newest comparison has failed."""
    names = {
        dg.AssetCheckKey(source_key(destination, each.name), EQUAL_CHECK): each.name for each in read_tables(directory)
    }
    found = instance.event_log_storage.get_latest_asset_check_execution_by_key(list(names))
    for key, record in found.items():
        evaluation = record.evaluation  # that of a comparison which has not ended has no result
        if isinstance(evaluation, dg.AssetCheckEvaluation) and not evaluation.passed:
            why = evaluation.description or "it differs"
            yield f"- **{names[key]}**: {why}. repair compares again, reads the rows that differ, and merges them"


def _consumers(directory: Path) -> Iterator[str]:
    ledger = read_ledger(directory)
    found = {each.client_id: str(each.cursor) for each in ledger.consumers}
    found |= {each.client_id: str(each.cursor) for each in ledger.group_consumers}
    for client_id, cursor in found.items():
        yield f"- {client_id}: forget deletes its cursor ({cursor}); the consumer then starts as a new one"
