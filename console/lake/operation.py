"""Runs backfills, repairs and other operations on Delta tables in the process of a command, and shows the results."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from sluice.batch_manifest.table_report import TableReport
from sluice.cdc_engine import destination_files
from sluice.console.toolchain.errors import SetupError
from sluice.equality.values import TableResult
from sluice.orchestration.base.ports import MergeFailedError, Ports
from sluice.orchestration.run.spark_merge import spark_merge


@contextlib.contextmanager
def ports_of_command() -> Iterator[Ports]:
    """Yields the `Ports` of an operation that needs no engine. `Ports` has the functions by which code in `orchestration` calls the rest of
    Sluice. Converts a MergeFailedError that the `with` block raises to a SetupError, whose message the command shows.
    """
    try:
        yield Ports(host=_no_engine, files=lambda: destination_files, merge=spark_merge)
    except MergeFailedError as error:
        raise SetupError(str(error)) from error


def _no_engine() -> Any:
    """Stands for the function that returns the engine. The operations of commands never call it, because they need no engine."""
    raise NotImplementedError


def results(
    reports: Sequence[TableReport], refused: Mapping[str, str], after: Sequence[TableResult] | None = None
) -> Table:
    """Formats the results of a backfill or repair, one line per table. `refused` has the reason for each table that was left out. `after`
    are the comparisons of source and lake after a repair, or None for a backfill.
    """
    equal = ["equal now"] if after is not None else []
    shown = Table("table", "keys", "rows inserted", "updated", "deleted", "version", *equal)
    verdicts = {each.table: "yes" if each.equal else str(each.verdict) for each in after or ()}
    for each in reports:
        counts = (each.source_rows, each.rows_inserted, each.rows_updated, each.rows_deleted, each.delta_version)
        shown.add_row(each.name, *map(str, counts), *(verdicts.get(each.name, "?") for _ in equal))
    for name, why in sorted(refused.items()):
        shown.add_row(name, f"left out: {why}")
    return shown
