"""Defines the parameters of a run for its merges of a batch, a backfill or a repair. The caller of a merge creates them."""

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
    """The parameters of a run for merges. The defaults are for a merge from the command line.

    - `fence`: checked immediately before each table and each commit, in any thread.
    - `storage_options`: deltalake's options, if the lake or the staged files are not local.
    - `records`: the record that earlier runs stored for each table.
    - `target_of`: returns the target of "database.table". The table need not be in the batch: a RENAME may have given its name to a table
      of the batch, which then takes over its rows.
    - `run`: the id of the run, which is stored in the commits.
    - `conflicts`: counts commits that other writers came before.
    - `table_locks`: the locks of tables that runs of other destinations also write.
    """

    fence: Fence = BY_HAND
    storage_options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    records: TableRecords = NO_RECORDS
    target_of: Callable[[str], TableTarget | None] = nowhere
    run: str = ""
    conflicts: CommitConflicts = dataclasses.field(default_factory=CommitConflicts)
    table_locks: TableLocks = NO_TABLE_LOCKS


BY_HAND_CONTEXT = MergeContext()
