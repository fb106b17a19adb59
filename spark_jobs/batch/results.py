"""Collects the results of a batch's tables while the steps of its merge add them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from sluice.batch_manifest.table_report import TableReport


@dataclasses.dataclass(frozen=True)
class BatchResults:
    """The report or error of each table so far. `on_table_done`: called with each report that is added."""

    on_table_done: Callable[[TableReport], None]
    reports: dict[str, TableReport]
    errors: dict[str, Exception]

    def add(self, report: TableReport) -> None:
        self.reports[report.name] = report
        self.on_table_done(report)

    def fail(self, name: str, error: Exception) -> None:
        """Adds the error of a table, even if the table was merged before."""
        self.errors[name] = error
        self.reports.pop(name, None)

    def __contains__(self, name: object) -> bool:
        """Whether the table has a report or an error."""
        return name in self.reports or name in self.errors
