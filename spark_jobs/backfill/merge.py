"""Merges a backfill. Each table's folded images become one commit, by the same code and guards as the stream's changes. Called by a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sluice.batch_manifest.table_report import TableReport
from sluice.spark_jobs.backfill.fold import folded
from sluice.spark_jobs.backfill.interval import StagedInterval, each_table, place_of, staged_table
from sluice.spark_jobs.merging.context import MergeContext
from sluice.spark_jobs.merging.merge import merge_table
from sluice.spark_jobs.session import SparkSettings, open_sessions
from sluice.spark_jobs.staged_batch import read_staged_batch
from sluice.spark_jobs.table_locks import Writing
from sluice.spark_jobs.targets.report import TableTarget

ACT, REASON = "backfill", "a backfill is merged by Spark"


def merge_backfill(
    interval: StagedInterval,
    tables: Mapping[str, TableTarget],
    spark: SparkSettings,
    context: MergeContext,
    *,
    on_table_done: Callable[[TableReport], None],
) -> list[TableReport]:
    """Merges the tables one after the other. A table without changes has no report. `context.fence`: that of the run that holds the run
    lock.

    Raises SparkUnavailableError, or MergeError, after the other tables have finished, if a table could not be merged.
    """
    fence, table_locks = context.fence, context.table_locks
    staged = [read_staged_batch(folder) for folder in interval.folders]
    with open_sessions(spark, 1, fence) as sessions:

        def merge(name: str) -> TableReport | None:
            up_to = place_of(interval, name, tables[name], context.storage_options)
            segments = interval.changes(staged, name, up_to, ACT)
            if not segments:
                return None
            path = interval.folders[0].parent / f"{len(name)}-{segments[0].file.name}"
            segment = folded(name, segments, path, interval.changed_up_to, up_to)
            if segment is None:
                return None
            table = staged_table(name, segment)
            mending = interval.mending(sessions[0], table, tables[name], up_to, context)
            writing, shared = Writing.of(table_locks.who, spark, sessions), tables[name].shared
            with table_locks.at(name, tables[name].path, writing, fence, shared=shared):
                report = mending.do(
                    lambda: merge_table(
                        *(sessions[0], interval.batch(table), table, tables[name], context), reason=REASON
                    )
                )
            on_table_done(report)
            return report

        return each_table(tables, merge, ACT)
