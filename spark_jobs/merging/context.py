"""Defines what a run passes to its merges of a batch, a backfill or a repair."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from sluice.spark_jobs.conflicts import CommitConflicts
from sluice.spark_jobs.fence import BY_HAND, Fence
from sluice.spark_jobs.table_locks import NO_TABLE_LOCKS, TableLocks
from sluice.spark_jobs.table_owner import NO_RECORDS, TableRecords
from sluice.spark_jobs.tables.renamed_table import nowhere
from sluice.spark_jobs.targets.report import TableTarget


@dataclasses.dataclass(frozen=True, kw_only=True)
class MergeContext:
    """What a run passes to its merges. The defaults are for a merge from the command line.

    - `fence` is checked immediately before each table and each commit, in any thread.
    - `storage_options` are deltalake's options, and are empty if the lake and the staged files are local.
    - `records` has the record that earlier runs stored for each table.
    - `target_of` returns the target of "database.table", including tables that are not in the batch. A table that was renamed in the batch
    takes over the rows of the table with its old name, and needs that table's target.
    - `run` is the id of the run, which is stored in the commits.
    - `conflicts` counts the commits that failed because another writer committed first.
    - `table_locks` has the locks of tables that other destinations write too.
    """

    fence: Fence = BY_HAND
    storage_options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    records: TableRecords = NO_RECORDS
    target_of: Callable[[str], TableTarget | None] = nowhere
    run: str = ""
    conflicts: CommitConflicts = dataclasses.field(default_factory=CommitConflicts)
    table_locks: TableLocks = NO_TABLE_LOCKS


BY_HAND_CONTEXT = MergeContext()
