"""Builds the summary of `sluice demo --once`: a row-by-row comparison of MySQL and the lake, the numbers of changes and runs, and the
seconds from a commit in MySQL until the change was visible in the lake.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sluice.console.demo.lake import Changes, DemoTable, freshness_seconds, percentile
from sluice.console.demo.runs import RunSummary
from sluice.console.demo.schema import DATABASE, MARKERS
from sluice.console.lake.equal import sentences_of
from sluice.equality.values import TableResult


@dataclasses.dataclass(frozen=True)
class Before:
    """The state of a Delta table at the start of this run of the demo. With this state, the summary leaves out the changes of earlier runs
    of the demo. `version` is the Delta version. The changes in a change log cannot be counted by version, so for a change log, `changes`
    has the counts of its changes at the start. For any other table, `changes` is empty.
    """

    version: int
    changes: Changes

    @classmethod
    def of(cls, table: DemoTable) -> Before:
        return cls(table.version, table.changes() if table.keyless else Changes())


@dataclasses.dataclass(frozen=True)
class TableSummary:
    comparison: TableResult
    changes: Changes

    def to_json(self) -> dict[str, Any]:
        counted = dataclasses.asdict(self.changes)
        return {"rows": self.comparison.rows, **counted, "equal": self.comparison.equal}


@dataclasses.dataclass(frozen=True)
class DemoSummary:
    """The summary of a demo, which `--json` writes to a file. The traffic writes a marker row every two seconds. `freshness` has, for each
    marker row, the seconds from its commit in MySQL until it was visible in the lake.
    """

    tables: Mapping[str, TableSummary]
    runs: RunSummary
    freshness: list[float]
    wall_seconds: float

    @property
    def equal(self) -> bool:
        return all(table.comparison.equal for table in self.tables.values())

    def to_json(self) -> dict[str, Any]:
        return {
            "equal": self.equal,
            "tables": {name: table.to_json() for name, table in self.tables.items()},
            "runs": self.runs.runs,
            "batches": self.runs.batches,
            "freshness_p50_s": percentile(self.freshness, 0.50),
            "freshness_p95_s": percentile(self.freshness, 0.95),
            "wall_s": round(self.wall_seconds, 1),
        }


def summarise(
    compared: Mapping[str, TableResult],
    lake: Mapping[str, DemoTable],
    before: Mapping[str, Before],
    runs: RunSummary,
    wall_seconds: float,
) -> DemoSummary:
    """Returns the summary of a demo. `compared` are the comparisons of MySQL and the lake, made after all changes of the traffic were
    acked. `before` has the state of each table when this run of the demo began, and `wall_seconds` is the time since then.
    """
    tables = {}
    for name, table in lake.items():
        start = before[name]
        changes = table.changes(start.version).since(start.changes)
        tables[name] = TableSummary(compared[f"{DATABASE}.{name}"], changes)
    freshness = freshness_seconds(lake[MARKERS].path, before[MARKERS].version)
    return DemoSummary(tables, runs, freshness, wall_seconds)


def show(summary: DemoSummary, screen: Console) -> None:
    """Prints the results per table, and the first ten differences of each table."""
    shown = Table("table", title="row by row against MySQL", title_justify="left")
    for column in ("rows", "inserted", "updated", "deleted"):
        shown.add_column(column, justify="right")
    shown.add_column("equal")
    for name, table in summary.tables.items():
        verdict = Text("yes", "green") if table.comparison.equal else Text("NO", "red")
        counts = (table.changes.inserted, table.changes.updated, table.changes.deleted)
        shown.add_row(name, str(table.comparison.rows), *map(str, counts), verdict)
    screen.print(shown)
    for table in summary.tables.values():
        if not table.comparison.equal:
            for sentence in sentences_of(table.comparison):
                screen.print(f"{table.comparison.table}: {sentence}", style="red", markup=False)
    figures = summary.to_json()
    screen.print(
        f"{figures['runs']} runs merged {figures['batches']} batches in {figures['wall_s']} s. Rows were visible in the lake "
        f"{figures['freshness_p50_s']} s after their commit (median), and {figures['freshness_p95_s']} s (95th percentile)"
    )
