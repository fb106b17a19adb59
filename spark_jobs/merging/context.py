"""Describes a run for its merges of a batch, a backfill or a repair. The caller of a merge makes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from sluice.spark_jobs.fence import BY_HAND, Fence
from sluice.spark_jobs.table_locks import NO_TABLE_LOCKS, TableLocks
from sluice.spark_jobs.table_owner import NO_RECORDS, TableRecords
from sluice.spark_jobs.tables.renamed_table import nowhere
from sluice.spark_jobs.targets.report import TableTarget


@dataclasses.dataclass(frozen=True, kw_only=True)
class MergeContext:
    """What a merge needs to know about its run. The defaults are for a merge by hand.

    - `fence`: checked immediately before each table and each commit, in any thread.
    - `storage_options`: deltalake's options if lake or staged files are not local.
    - `records`: the state that earlier runs left in each table.
    - `target_of`: returns the target of "database.table", which need not be in the batch: a table may have had its name before a RENAME.
    - `run`: the ID of the merge run, which is stored in the commits.
    - `table_locks`: of tables that runs of other destinations also write.
    """

    fence: Fence = BY_HAND
    storage_options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    records: TableRecords = NO_RECORDS
    target_of: Callable[[str], TableTarget | None] = nowhere
    run: str = ""
    table_locks: TableLocks = NO_TABLE_LOCKS


BY_HAND_CONTEXT = MergeContext()
