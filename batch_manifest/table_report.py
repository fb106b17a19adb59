"""Defines the report of a merge into one table, which the merge makes and the run shows."""

from __future__ import annotations

import dataclasses
from typing import Literal

Way = Literal["spark", "small"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableReport:
    """What one batch did to one table, from `delta_version_before` to `delta_version`. Order keys are those of the batch's first and last
    change.

    - `source_inserts`, `source_updates`, `source_deletes`: changes in the source, by kind.
    - Row counts are Delta's metrics of this call's commits. A soft delete counts as an update, an appended image of a table without a key
      as an insert. `rows_copied`: unchanged rows that were rewritten with their files.
    - `files_scanned`, `files_pruned`: files that merges read, and files that they skipped by key statistics.
    - `skipped`: the table had the whole batch already.
    - `buffered`: a snapshot of the table is running, so its changes are buffered outside the lake.
    - `way`: what merged it, and `reason`: why.
    - `table_rows`, `table_bytes`: the size of the table afterwards, as far as its log contains it.
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
    table_rows: int | None = None
    table_bytes: int | None = None

    @property
    def name(self) -> str:
        return f"{self.database}.{self.table}"
