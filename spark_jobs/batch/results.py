"""Collects the reports and errors of a batch's tables while they are merged."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from sluice.batch_manifest.table_report import TableReport
from sluice.spark_jobs.conflicts import CommitConflicts
from sluice.spark_jobs.errors import LostCommitError


@dataclasses.dataclass(frozen=True)
class BatchResults:
    """The reports and errors of a batch's tables, by table name, while the batch is merged. Each report that is added is passed to
    `on_table_done`. `conflicts` counts the commit conflicts of each table of the batch.
    """

    on_table_done: Callable[[TableReport], None]
    reports: dict[str, TableReport]
    errors: dict[str, Exception]
    conflicts: CommitConflicts

    def add(self, report: TableReport) -> None:
        """Adds the report of a table, with the number of commit conflicts that were counted for the table until now."""
        report = dataclasses.replace(report, conflicts=self.conflicts.of(report.name))
        self.reports[report.name] = report
        self.on_table_done(report)

    def fail(self, name: str, error: Exception) -> None:
        """Records the error of a table, and removes the table's report if there is one."""
        if isinstance(error, LostCommitError):
            self.conflicts.add(name)
        self.errors[name] = error
        self.reports.pop(name, None)

    def __contains__(self, name: object) -> bool:
        """Returns whether the table has a report or an error."""
        return name in self.reports or name in self.errors
