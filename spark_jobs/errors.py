"""The errors that a merge raises. All of them can be pickled. Each message says what happened, where, and what to do, and has no secrets.

SparkJobError
├── StagedBatchError        the staged directory differs from its manifest; nothing was merged from it
├── SparkUnavailableError   Spark cannot be reached, or it stopped; repeat the batch when Spark is available
├── TableError              the batch cannot be merged into one table, e.g. because Spark refused a statement
│   └── LostCommitError     another writer replaced a commit of this run
└── MergeError              at least one table of a batch could not be merged
"""

from __future__ import annotations

import re
from typing import Any

MERGE_FAILED = "MERGE_FAILED"
# Matches error messages of a disk or an object store. An error of the disk or the store does not stop a table.
LAKE_TROUBLE = re.compile(
    r"no space left|disk quota|read-only file|permission denied|too many open files|timed? ?out", re.IGNORECASE
)


class SparkJobError(Exception):
    """The base class of all errors of this package."""


class StagedBatchError(SparkJobError):
    """Raised if the manifest of a staged batch is missing, or the files of the batch differ from it."""


class SparkUnavailableError(SparkJobError):
    """Raised if Spark does not answer. The whole batch can be repeated, because tables that were merged are then skipped."""


class TableError(SparkJobError):
    """Raised if one table cannot be merged.

    - `table` is "database.table".
    - `state` is the table state that an operator sees.
    - `for_good` is true if another attempt cannot succeed.
    - `own` is true if the cause is in this table, and false if the cause is in the batch or the whole lake.
    """

    def __init__(
        self, table: str, reason: str, *, state: str = MERGE_FAILED, for_good: bool = False, own: bool = True
    ) -> None:
        super().__init__(table, reason)
        self.table, self.reason, self.state, self.for_good, self.own = table, reason, state, for_good, own

    def __reduce__(self) -> tuple[Any, ...]:
        return _table_error, (self.table, self.reason, self.state, self.for_good, self.own)

    def __str__(self) -> str:
        return f"{self.table}: {self.reason}"


class LostCommitError(TableError):
    """Raised if another writer of a Delta table replaced a commit that this run made after version `before`."""

    def __init__(self, table: str, path: str, before: int) -> None:
        reason = (
            f"after version {before}, the log of the Delta table {path} has a commit of another writer instead of "
            "the commit of this run. Sluice tries again. If that fails too, several Spark servers may write the "
            "lake without conditional commits (see `sluice check`). Use one Spark server, and restart it, because "
            "its memory may differ from the log"
        )
        super().__init__(table, reason, own=False)


def _table_error(table: str, reason: str, state: str, for_good: bool, own: bool) -> TableError:
    return TableError(table, reason, state=state, for_good=for_good, own=own)


class MergeError(SparkJobError):
    """Raised if at least one table of a batch could not be merged. `merged` and `failed` have the names of the tables that were merged and
    of those that were not, as "database.table". `errors` has the errors of the failed tables. An error whose cause is not in the table
    itself (`TableError.own` is False) may be left out. The batch can be repeated.
    """

    def __init__(
        self, reason: str, merged: tuple[str, ...], failed: tuple[str, ...], errors: tuple[TableError, ...] = ()
    ) -> None:
        super().__init__(reason, merged, failed, errors)
        self.reason, self.merged, self.failed, self.errors = reason, merged, failed, errors

    def __str__(self) -> str:
        merged = ", ".join(self.merged) or "none"
        return (
            f"{self.reason} (merged: {merged}; not merged: {', '.join(self.failed)}; merging the batch again "
            "applies no change twice)"
        )


def unreadable_log(path: str, error: Exception) -> str:
    """Returns the message for a Delta table whose log cannot be read."""
    return f"the log of the Delta table {path} cannot be read: {error}; check its disk or object store"
