"""Defines the errors that a merge raises. All can be pickled; each says in one sentence what happened, where, and what to do, and contains
no secret.

SparkJobError
├── StagedBatchError        the staged directory differs from its manifest; nothing was merged from it
├── SparkUnavailableError   Spark cannot be reached or went away; repeat the batch when it is back
├── TableError              one table cannot take the batch: a type differs, a name exists already, Spark refused
└── MergeError              some tables of a batch were merged and some were not"""

from __future__ import annotations

import re
from typing import Any

MERGE_FAILED = "MERGE_FAILED"
# These are errors of a disk or an object store. They do not stop a table.
LAKE_TROUBLE = re.compile(
    r"no space left|disk quota|read-only file|permission denied|too many open files|timed? ?out", re.IGNORECASE
)


class SparkJobError(Exception):
    """The base class of all errors of this package."""


class StagedBatchError(SparkJobError):
    """The files of a staged batch differ from its manifest, or the manifest is missing."""


class SparkUnavailableError(SparkJobError):
    """Spark does not answer. The whole batch can be repeated, because tables that were merged are skipped."""


class TableError(SparkJobError):
    """One table could not be merged. `table` is "database.table", `state` the table state that an operator sees.

    `for_good`: another try will not help. `own`: the cause is the table itself, not the batch or the whole lake.
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


def _table_error(table: str, reason: str, state: str, for_good: bool, own: bool) -> TableError:
    return TableError(table, reason, state=state, for_good=for_good, own=own)


class MergeError(SparkJobError):
    """A part of a batch was merged. `merged`, `failed`: "database.table". Repeating the batch is safe.

    `errors`: the errors of the tables that failed for reasons of their own.
    """

    def __init__(
        self, reason: str, merged: tuple[str, ...], failed: tuple[str, ...], errors: tuple[TableError, ...] = ()
    ) -> None:
        super().__init__(reason, merged, failed, errors)
        self.reason, self.merged, self.failed, self.errors = reason, merged, failed, errors

    def __str__(self) -> str:
        merged = ", ".join(self.merged) or "none"
        return f"{self.reason} (merged: {merged}; not merged: {', '.join(self.failed)}; repeating the batch changes nothing twice)"


def unreadable_log(path: str, error: Exception) -> str:
    """Returns the message for a Delta table whose log cannot be read."""
    return f"the log of the Delta table {path} cannot be read: {error}; check its disk or object store"
