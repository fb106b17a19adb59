"""Every error a merge raises. All are picklable, say what happened, where and what to do in one sentence, and hold no secret.

SparkJobError
├── StagedBatchError        the staged directory is not what its manifest says; nothing was merged from it
├── SparkUnavailableError   Spark cannot be reached, or went away; repeat the batch when it is back
├── TableError              one table cannot take the batch: a type differs, a name is taken, Spark refused
└── MergeError              some tables of a batch were merged and some were not
"""

from __future__ import annotations


class SparkJobError(Exception):
    """The base of all errors of this room."""


class StagedBatchError(SparkJobError):
    """The files of a staged batch do not agree with its manifest, or there is no manifest."""


class SparkUnavailableError(SparkJobError):
    """No Spark answers. A batch may be repeated as a whole: tables that were merged are skipped."""


class TableError(SparkJobError):
    """One table could not be merged. `table` is "database.table"."""

    def __init__(self, table: str, reason: str) -> None:
        super().__init__(table, reason)
        self.table, self.reason = table, reason

    def __str__(self) -> str:
        return f"{self.table}: {self.reason}"


class MergeError(SparkJobError):
    """A batch was merged in part. `merged` and `failed` are "database.table"; repeating the batch is safe."""

    def __init__(self, reason: str, merged: tuple[str, ...], failed: tuple[str, ...]) -> None:
        super().__init__(reason, merged, failed)
        self.reason, self.merged, self.failed = reason, merged, failed

    def __str__(self) -> str:
        merged = ", ".join(self.merged) or "none"
        return f"{self.reason} (merged: {merged}; not merged: {', '.join(self.failed)}; repeating the batch changes nothing twice)"
