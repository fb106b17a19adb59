"""Merges a repair: each table's chosen keys in one commit, with the rows that they have at the lake's position. Called by a run.

The caller holds the run lock, so no table changes meanwhile. Repeating it, wholly or in part, changes no correct row. A MERGE cannot
distinguish two rows of one key: such rows are deleted in a commit before, under the same lock."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from sluice.batch_manifest.table_report import TableReport
from sluice.batch_manifest.values import ChangesSegment
from sluice.spark_jobs.backfill.interval import StagedInterval, each_table, place_of, staged_table
from sluice.spark_jobs.merging.context import MergeContext
from sluice.spark_jobs.merging.merge import merge_table
from sluice.spark_jobs.repair.fold import Read, cleared, repaired
from sluice.spark_jobs.session import LakeSession, SparkSettings, open_sessions
from sluice.spark_jobs.staged_batch import StagedBatch, read_staged_batch
from sluice.spark_jobs.targets.report import TableTarget

ACT, REASON = "repair", "a repair is merged by Spark"


def merge_repair(
    interval: StagedInterval,
    tables: Mapping[str, tuple[TableTarget, Read]],
    spark: SparkSettings,
    context: MergeContext,
    *,
    on_table_done: Callable[[TableReport, int], None],
    on_left: Callable[[str, int], None] = lambda _name, _keys: None,
) -> list[TableReport]:
    """Merges the tables one after the other. `context.fence`: that of the run that holds the run lock.

    `on_table_done`: called with a table's report and the order key up to which the lake has the table. `on_left`: called before it with a
    table's number of keys that are left unchanged, because their rows are missing and it is unknown since when.

    Raises SparkUnavailableError, or MergeError, after the other tables have finished, if a table could not be merged.
    """
    staged = [read_staged_batch(folder) for folder in interval.folders]
    with open_sessions(spark, 1, context.fence) as sessions:
        one = _OneTable(sessions[0], interval, staged, context, on_left)

        def repair(name: str) -> TableReport | None:
            up_to = place_of(interval, name, tables[name][0], context.storage_options)
            report = one.repair(name, *tables[name], up_to)
            if report is not None:
                on_table_done(report, up_to)
            return report

        return each_table(tables, repair, ACT)


@dataclasses.dataclass(frozen=True)
class _OneTable:
    session: LakeSession
    interval: StagedInterval
    staged: Sequence[StagedBatch]
    context: MergeContext
    on_left: Callable[[str, int], None]

    def repair(self, name: str, target: TableTarget, read: Read, up_to: int) -> TableReport | None:
        """Repairs one table. Returns None if there is nothing to merge. Raises TableError, or any exception of Spark."""
        segments = self.interval.changes(self.staged, name, up_to, ACT)
        folder = self.interval.folders[0].parent
        path = folder / f"{read.files[0].parent.name}.parquet"
        fold = repaired(name, read, segments, path, up_to)
        if left := int(fold.lost.sum()):
            self.on_left(name, left)
        if (segment := fold.segment) is None:
            return None
        away = cleared(read, fold.lost, path.with_suffix(".doubled"), up_to)
        table = staged_table(name, segment)
        mending = self.interval.mending(self.session, table, target, up_to, self.context)
        return mending.do(lambda: self._write(name, target, segment, away))

    def _write(
        self, name: str, target: TableTarget, segment: ChangesSegment, away: ChangesSegment | None
    ) -> TableReport:
        if away is not None:
            self._merge(name, target, away, "-doubled")
        return self._merge(name, target, segment)

    def _merge(self, name: str, target: TableTarget, segment: ChangesSegment, which: str = "") -> TableReport:
        table = staged_table(name, segment)
        batch = self.interval.batch(table, which)
        return merge_table(self.session, batch, table, target, self.context, reason=REASON)
