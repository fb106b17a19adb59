"""Merges a backfill or a repair, table after table. Uses the same code and guards as merges of the stream. A Dagster run calls this module.

Each table is merged in one commit, with one row image per key. If the lake has several rows of one key, a repair first deletes these rows
in a separate commit, because a MERGE cannot distinguish them. If one table fails, the others are still merged.

The caller holds the run lock, so no other run changes a table meanwhile. Repeating the operation, or a part of it, changes no correct row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from sluice.batch_manifest.table_report import TableReport
from sluice.batch_manifest.values import ChangesSegment, StagedTable
from sluice.spark_jobs.errors import MergeError, SparkUnavailableError, TableError
from sluice.spark_jobs.merging.context import MergeContext
from sluice.spark_jobs.merging.merge import merge_table
from sluice.spark_jobs.rows.fold import Read, cleared, folded
from sluice.spark_jobs.session import LakeSession, SparkSettings, first_line, is_away, open_sessions
from sluice.spark_jobs.side_tables.history_fix import HistoryFix
from sluice.spark_jobs.staged_batch import Backfill, StagedBatch, app_id_of
from sluice.spark_jobs.staged_files.read import read_staged_batch
from sluice.spark_jobs.table_locks import Writing
from sluice.spark_jobs.table_owner import Owner
from sluice.spark_jobs.tables.commit_record import commit_record
from sluice.spark_jobs.tables.delta_table import DeltaTable
from sluice.spark_jobs.targets.report import TableTarget


@dataclasses.dataclass(frozen=True, kw_only=True)
class StagedInterval:
    """The interval of the stream that a backfill or repair has read.

    - `backfill` has the id and times of the backfill or repair, which the commits store.
    - `ledger_id` is the destination's current ledger.
    - `folders` are consecutive staged batches.
    - `changed_in` are the intervals whose changes were requested, in ascending order. Each interval begins above its first order key and
    ends at its second one.
    - `lake_at` is the order key up to which every table is merged. Some tables may be merged further.
    - `read_to` is the order key up to which the stream was read.
    - `start` is the position at which the interval begins, and `end` is the lake's position, in the form in which a manifest has positions.
    """

    backfill: Backfill
    destination: str
    ledger_id: str
    epoch: int
    folders: Sequence[Path]
    changed_in: Sequence[tuple[int, int]]
    lake_at: int
    read_to: int
    start: Mapping[str, object]
    end: Mapping[str, object]

    def batch(self, table: StagedTable, which: str = "") -> StagedBatch:
        """Returns a batch with this table only. The suffix `which` distinguishes several batches of one table."""
        return StagedBatch(
            directory=self.folders[0],
            destination=self.destination,
            ledger_id=self.ledger_id,
            epoch=self.epoch,
            delivery=0,
            start=dict(self.start),
            end=dict(self.end),
            tables=(table,),
            backfill=dataclasses.replace(self.backfill, backfill_id=f"{self.backfill.backfill_id}{which}"),
        )

    def history_fix(
        self, session: LakeSession, table: StagedTable, target: TableTarget, up_to: int, context: MergeContext
    ) -> HistoryFix:
        """Returns the object that updates the table's history after the merge into its current-state table. `table` has one segment. The
        current-state table is merged up to the order key `up_to`.
        """
        (segment,) = table.changes
        batch = self.batch(table)
        return HistoryFix(
            session=session,
            folder=self.folders[0].parent / "history",
            owner=batch.owner(table),
            target=target,
            key=segment.key,
            position=(up_to, int(str(self.end.get("time_us") or 0))),
            record=commit_record(batch, table, segment, context.run),
            storage_options=context.storage_options,
            records=context.records,
            fence=session.fence,
        )

    def changes(self, staged: Iterable[StagedBatch], name: str, up_to: int) -> list[ChangesSegment]:
        """Returns a table's segments of changes in order. The lake's table is merged up to the order key `up_to`.

        Raises TableError if `up_to` is above `read_to`, the order key up to which the stream was read, or if a DDL statement changed the
        table in the interval.
        """
        act = self.backfill.kind
        if up_to > self.read_to:
            why = f"newer changes were merged into the table after the {act} had read the binlog; start the {act} again"
            raise TableError(name, why, own=False)
        found = [table for batch in staged for table in batch.tables if table.name == name]
        if any(len(table.changes) != len(table.segments) for table in found):
            why = f"a DDL statement changed the table in the interval that the {act} read; start the {act} again"
            raise TableError(name, why, own=False)
        return [segment for table in found for segment in table.changes]


def staged_table(name: str, segment: ChangesSegment) -> StagedTable:
    """Returns the staged table "database.table" (`name`) with one segment."""
    database, _, short = name.partition(".")
    return StagedTable(database=database, table=short, segments=(segment,))


def position_of(interval: StagedInterval, name: str, target: TableTarget, storage_options: Mapping[str, str]) -> int:
    """Returns the order key up to which "database.table" is merged. Raises TableError if the Delta log cannot be read."""
    owner = Owner(ledger_id=interval.ledger_id, destination=interval.destination, table=name)
    table = DeltaTable(name, target.path, app_id_of(owner), storage_options)
    return max(interval.lake_at, table.refresh().applied_order_key)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MergedRows:
    """What to merge into one table. `read` has the keys and rows of a repair. If it is None, the keys that changed in the interval are
    merged.
    """

    target: TableTarget
    read: Read | None = None


def merge_rows(
    interval: StagedInterval,
    tables: Mapping[str, MergedRows],
    spark: SparkSettings,
    context: MergeContext,
    *,
    on_table_done: Callable[[TableReport, int], None],
    on_left: Callable[[str, int], None] = lambda _name, _keys: None,
) -> list[TableReport]:
    """Merges the tables one after the other. Returns the reports of the tables that had something to merge. `context.fence` is the fence
    of the run, which holds the run lock.

    After each table that was merged, calls `on_table_done` with its report and the order key up to which the table is merged. If keys of a
    table stay unchanged because their rows were found neither in the source nor in the stream, first calls `on_left` with their number.

    Raises SparkUnavailableError if the connection to Spark is lost. If a table could not be merged, raises MergeError after the other
    tables have finished.
    """
    staged = [read_staged_batch(folder) for folder in interval.folders]
    paths = {name: interval.folders[0].parent / f"folded-{number}.parquet" for number, name in enumerate(tables)}
    with open_sessions(spark, 1, context.fence) as sessions:
        one = _OneTable(sessions[0], interval, context, Writing.of(context.table_locks.who, spark, sessions))

        def merge(name: str) -> TableReport | None:
            rows = tables[name]
            up_to = position_of(interval, name, rows.target, context.storage_options)
            segments = interval.changes(staged, name, up_to)
            if rows.read is None and not segments:
                return None
            changed_in = interval.changed_in if rows.read is None else ()
            fold = folded(name, segments, paths[name], up_to, changed_in=changed_in, read=rows.read)
            if left := int(fold.lost.sum()):
                on_left(name, left)
            if fold.segment is None:
                return None
            away = cleared(rows.read, fold.lost, paths[name].with_suffix(".doubled"), up_to) if rows.read else None
            report = one.merge(name, rows.target, fold.segment, away, up_to)
            on_table_done(report, up_to)
            return report

        return _each_table(tables, merge, interval.backfill.kind)


@dataclasses.dataclass(frozen=True)
class _OneTable:
    session: LakeSession
    interval: StagedInterval
    context: MergeContext
    writing: Writing

    def merge(
        self, name: str, target: TableTarget, segment: ChangesSegment, away: ChangesSegment | None, up_to: int
    ) -> TableReport:
        """Merges one table's `segment` and updates the table's history. `away`, if given, has the keys of which the lake has several rows;
        these rows are deleted first. Raises TableError, or an exception of Spark.
        """
        table = staged_table(name, segment)
        history_fix = self.interval.history_fix(self.session, table, target, up_to, self.context)
        lock = self.context.table_locks.at(name, target.path, self.writing, self.context.fence, shared=target.shared)
        with lock:
            return history_fix.do(lambda: self._write(name, target, segment, away))

    def _write(
        self, name: str, target: TableTarget, segment: ChangesSegment, away: ChangesSegment | None
    ) -> TableReport:
        if away is not None:
            self._merge(name, target, away, "-doubled")
        return self._merge(name, target, segment)

    def _merge(self, name: str, target: TableTarget, segment: ChangesSegment, which: str = "") -> TableReport:
        table, act = staged_table(name, segment), self.interval.backfill.kind
        batch = self.interval.batch(table, which)
        return merge_table(self.session, batch, table, target, self.context, reason=f"Spark merges each {act}")


def _each_table(names: Iterable[str], merge: Callable[[str], TableReport | None], act: str) -> list[TableReport]:
    """Calls `merge` for each table. Returns the reports of the tables that had something to merge. Messages name the operation with `act`,
    which is backfill or repair.

    Raises SparkUnavailableError if the connection to Spark is lost. If a table could not be merged, raises MergeError after the other
    tables have finished.
    """
    reports: list[TableReport] = []
    errors: list[TableError] = []
    for name in names:
        try:
            report = merge(name)
        except Exception as error:
            errors.append(_failure(name, error, act))
        else:
            reports += [report] if report is not None else []
    if errors:
        failed, merged = tuple(each.table for each in errors), tuple(each.name for each in reports)
        raise MergeError(str(errors[0]), merged, failed, tuple(errors))
    return reports


def _failure(name: str, error: Exception, act: str) -> TableError:
    if is_away(error):
        raise SparkUnavailableError(
            f"the connection to Spark was lost during the {act} of {name} ({first_line(error)}); start the {act} again"
        ) from error
    return (
        error
        if isinstance(error, TableError)
        else TableError(
            name,
            f"the {act} of the table failed in Spark: {first_line(error)}; correct the cause and start the {act} again",
        )
    )
