"""Implements the user interface of `sluice lake swap`: shows the plan as a table, asks for confirmation, and swaps. The rules are in
`spark_jobs.backfill.swap`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.table import Table

from sluice.cdc_engine import destination_files
from sluice.cdc_engine.config import SluiceConfig
from sluice.console.source.query import require_destination
from sluice.console.toolchain.errors import SetupError
from sluice.orchestration.base.ports import MergeFailedError, Ports
from sluice.orchestration.run.rows.swap import SwapPlan, SwapRequest, plan_swap, run_swap
from sluice.orchestration.run.spark_merge import spark_merge


def plan(config: SluiceConfig, request: SwapRequest) -> SwapPlan:
    """Returns the plan. Raises ConfigurationError for an unknown destination, SetupError if a log cannot be read."""
    require_destination(config, request.destination)
    try:
        return plan_swap(config, request)
    except MergeFailedError as error:
        raise SetupError(str(error)) from error


def run(config: SluiceConfig, request: SwapRequest, say: Callable[[str], None]) -> int:
    """Swaps the tables and returns the resulting version of the live table. Raises SluiceError, or SetupError if the swap was refused or
    could not be written.
    """
    ports = Ports(host=_no_engine, files=lambda: destination_files, merge=spark_merge)
    try:
        return run_swap(ports, config, request, say)
    except MergeFailedError as error:
        raise SetupError(str(error)) from error


def _no_engine() -> Any:
    """Raises NotImplementedError: a swap needs no engine."""
    raise NotImplementedError


def render(made: SwapPlan) -> Table:
    shown = Table("table", "version", "rows", "swapped with", "rows then", "up to", "")
    rows = "unknown" if made.rows_before is None else str(made.rows_before)
    shown.add_row(
        made.table, str(made.version), rows, made.rebuilt, str(made.rows_after), made.up_to, made.refused or "ready"
    )
    return shown
