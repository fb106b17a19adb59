"""Defines where a merge writes one table, and the report of a table whose changes are buffered."""

from __future__ import annotations

import dataclasses
from typing import Literal

from sluice.batch_manifest.table_report import TableReport
from sluice.batch_manifest.values import ChangesSegment, StagedTable
from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.staged_batch import last_order_key
from sluice.spark_jobs.targets.layout import PLAIN, Layout
from sluice.spark_jobs.targets.shards import Shard
from sluice.spark_jobs.targets.ways import SmallSetting


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableTarget:
    """The Delta table of a source table, and how it is written.

    - `path` is an absolute path, or a URL that both Spark and deltalake accept.
    - `deletes` is "soft" if deleted rows of tables with a key are only marked.
    - `merge` is the setting of conf/: Spark's MERGE, a small merge, or "auto", with which the size of the changes decides.
    - `change_log` and `history` are the paths of these tables, or are empty if conf/ does not configure the tables.
    - `current_state` says whether there is a current-state table at `path`.
    - `shard` identifies the rows of the source table, if several source tables share the Delta table.
    - `clash` says why no table may be created at the paths, and is empty if tables may be created.
    """

    path: str
    deletes: Literal["hard", "soft"] = "hard"
    deletion_vectors: bool = True
    merge: SmallSetting = "spark"
    layout: Layout = PLAIN
    change_log: str = ""
    history: str = ""
    current_state: bool = True
    shard: Shard | None = None
    clash: str = ""

    def refuse_clash(self, name: str, then: str = "sluice schema resume") -> None:
        """Raises TableError if the path of a new table "database.table" clashes with that of another table: the paths are equal, or one is
        inside the other. `then` is the command with which an operator continues after changing the path.
        """
        if self.clash:
            raise TableError(name, f"{self.clash}; then `{then}`", for_good=True)

    @property
    def shared(self) -> bool:
        """Whether several source tables share the Delta table."""
        return self.shard is not None

    @property
    def has_side_tables(self) -> bool:
        """Whether the table has a change log or a history."""
        return bool(self.change_log or self.history)

    @property
    def kept(self) -> str:
        """The path of the Delta table with the most data: the current-state table, or else the history, or else the change log."""
        return self.path if self.current_state else self.history or self.change_log


def report_of_buffered(staged: StagedTable, path: str, rows: int, milliseconds: int) -> TableReport:
    """Returns the report of a table whose changes are buffered. Nothing was committed, so the report has no version."""
    changes = staged.changes
    whole = [each for each in staged.segments if not isinstance(each, ChangesSegment)]
    times = [each.commit_time_us for each in whole]
    keys = [last_order_key(segment) for segment in staged.segments]
    return TableReport(
        database=staged.database,
        table=staged.table,
        path=path,
        rows_inserted=0,
        rows_updated=0,
        rows_deleted=0,
        source_rows=rows,
        bytes=staged.bytes,
        merge_ms=milliseconds,
        files_added=0,
        files_removed=0,
        delta_version=-1,
        delta_version_before=-1,
        source_inserts=sum(each.inserts for each in changes),
        source_updates=sum(each.updates for each in changes),
        source_deletes=sum(each.deletes for each in changes),
        start_order_key=min(keys, default=-1),
        end_order_key=max(keys, default=-1),
        first_commit_time_us=min([*times, *(each.first_commit_time_us for each in changes)], default=0),
        last_commit_time_us=max([*times, *(each.last_commit_time_us for each in changes)], default=0),
        columns=(),
        skipped=False,
        buffered=True,
    )
