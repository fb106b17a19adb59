"""Defines the report of a merge into one table. The merge makes the report, and the run shows the report in Dagster."""

from __future__ import annotations

import dataclasses
from typing import Literal

Way = Literal["spark", "small"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableReport:
    """The report of a merge: what one batch did to one table, between the Delta versions `delta_version_before` and `delta_version`.
    `start_order_key` and `end_order_key` are the order keys of the first and the last change of the table in the batch.

    - `source_inserts`, `source_updates` and `source_deletes` count the changes in the source, by kind. `source_rows` counts the row images.
    - Row counts are Delta's metrics of this merge's commits. A soft delete counts as an update. A row image that is appended to a table
      without a key counts as an insert. `rows_copied` counts unchanged rows that were rewritten with their files.
    - `files_scanned` counts files that this merge read. `files_pruned` counts files that this merge skipped because of the files' key
      statistics.
    - `skipped` says that the table already had all changes of the batch, so the merge wrote nothing.
    - `buffered` says that the changes are buffered outside of the lake, because a snapshot of the table is running.
    - `way` says whether Spark or a small merge merged the table. `reason` says why this way was chosen.
    - `conflicts` counts how often another writer of the Delta table committed before this merge, or replaced a commit of this merge.
    - `table_rows` and `table_bytes` are the size of the table after the merge, or None if the Delta log does not contain the size.
    """

    database: str
    table: str
    path: str
    rows_inserted: int
    rows_updated: int
    rows_deleted: int
    source_rows: int
    bytes: int
    merge_ms: int
    files_added: int
    files_removed: int
    delta_version: int
    delta_version_before: int
    source_inserts: int
    source_updates: int
    source_deletes: int
    start_order_key: int
    end_order_key: int
    first_commit_time_us: int
    last_commit_time_us: int
    columns: tuple[tuple[str, str], ...]
    skipped: bool
    way: Way = "spark"
    reason: str = ""
    buffered: bool = False
    rows_copied: int = 0
    files_scanned: int = 0
    files_pruned: int = 0
    conflicts: int = 0
    table_rows: int | None = None
    table_bytes: int | None = None

    @property
    def name(self) -> str:
        return f"{self.database}.{self.table}"
