"""Implements `sluice lake swap`: shows the plan of a swap, and replaces a table's rows by the rows of a rebuilt table.
`spark_jobs.backfill.swap` decides whether the swap is permitted.
"""

from __future__ import annotations

from collections.abc import Callable

from rich.table import Table

from sluice.cdc_engine.config import SluiceConfig
from sluice.console.lake.operation import ports_of_command
from sluice.console.source.query import require_destination
from sluice.orchestration.run.rows.swap import SwapPlan, SwapRequest, plan_swap, run_swap


def plan(config: SluiceConfig, request: SwapRequest) -> SwapPlan:
    """Returns the plan of a swap. Raises ConfigurationError if the destination does not exist, and SetupError if a Delta log cannot be
    read.
    """
    require_destination(config, request.destination)
    with ports_of_command():
        return plan_swap(config, request)


def run(config: SluiceConfig, request: SwapRequest, say: Callable[[str], None]) -> int:
    """Replaces the table's rows by the rows of the rebuilt table, and returns the table's new version. Raises SetupError if the swap is
    refused or cannot be written, and SluiceError for other expected errors.
    """
    with ports_of_command() as ports:
        return run_swap(ports, config, request, say)


def render(made: SwapPlan) -> Table:
    shown = Table("table", "version", "rows", "swapped with", "rows then", "up to", "")
    rows = "unknown" if made.rows_before is None else str(made.rows_before)
    shown.add_row(
        made.table, str(made.version), rows, made.rebuilt, str(made.rows_after), made.up_to, made.refused or "ready"
    )
    return shown
