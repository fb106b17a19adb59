"""Implements the user interface of `sluice repair`: shows the differences as a table and the progress as sentences. The rules are in
`orchestration.run.rows.repair`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.table import Table

from sluice.cdc_engine import destination_files
from sluice.cdc_engine.config import SluiceConfig
from sluice.console.source.query import require_destination
from sluice.console.toolchain.errors import SetupError
from sluice.orchestration.base.ports import MergeFailedError, Ports
from sluice.orchestration.run.rows.repair import Repaired, TableRepair, plan_repair, run_repair
from sluice.orchestration.run.rows.request import RepairRequest, RowsListener
from sluice.orchestration.run.spark_merge import spark_merge


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
    ports = Ports(host=_no_engine, files=lambda: destination_files, merge=spark_merge)
    try:
        return run_repair(ports, config, request, planned, RowsListener(say=say))
    except MergeFailedError as error:
        raise SetupError(str(error)) from error


def _no_engine() -> Any:
    """Raises NotImplementedError: a repair needs no engine."""
    raise NotImplementedError


def outcome(done: Repaired) -> Table:
    """Returns the result, with one line per table."""
    shown = Table("table", "keys", "rows inserted", "updated", "deleted", "version", "equal now")
    after = {each.table: each for each in done.after}
    for each in done.outcomes:
        counts = (each.source_rows, each.rows_inserted, each.rows_updated, each.rows_deleted, each.delta_version)
        now = after.get(each.name)
        shown.add_row(each.name, *map(str, counts), "yes" if now and now.equal else str(now.verdict if now else "?"))
    for name, why in sorted(done.refused.items()):
        shown.add_row(name, f"left out: {why}")
    return shown
