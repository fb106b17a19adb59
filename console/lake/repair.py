"""Implements the user interface of `sluice repair`: shows the differences as a table and the progress as sentences. The rules are in
`orchestration.run.rows.repair`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.table import Table

from sluice.cdc_engine.config import SluiceConfig
from sluice.console.lake.operation import ports_of_command, results
from sluice.console.source.query import require_destination
from sluice.orchestration.run.rows.repair import Repaired, TableRepair, plan_repair, run_repair
from sluice.orchestration.run.rows.request import RepairRequest, RowsListener


def plan(config: SluiceConfig, request: RepairRequest) -> tuple[TableRepair, ...]:
    """Returns the plan. Raises what `plan_repair` raises, and ConfigurationError for an unknown destination."""
    require_destination(config, request.destination)
    return plan_repair(config, request)


def rows(planned: Sequence[TableRepair]) -> Table:
    """Returns the differences, with one line per table."""
    shown = Table("table", "chunks", "missing", "surplus", "doubled", "other values", "")
    for each in planned:
        counts = [str(each.keys.get(kind, "")) for kind in ("missing", "surplus", "doubled", "value")]
        shown.add_row(each.name, str(len(each.result.chunks_different)), *counts, each.refused or "ready")
    return shown


def run(
    config: SluiceConfig, request: RepairRequest, planned: tuple[TableRepair, ...], say: Callable[[str], None]
) -> Repaired:
    """Runs the repair. Raises SluiceError, or SetupError if a table could not be merged."""
    with ports_of_command() as ports:
        return run_repair(ports, config, request, planned, RowsListener(say=say))


def outcome(done: Repaired) -> Table:
    """Returns the result, with one line per table."""
    return results(done.outcomes, done.refused, done.after)
