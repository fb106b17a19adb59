"""Merges a staged batch: first the small tables, usually all of them in one Spark job, and then the other tables in parallel. Two merges
never write the same table at the same time.
"""

from __future__ import annotations

import dataclasses
import logging
import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

from sluice.batch_manifest.table_report import TableReport
from sluice.batch_manifest.values import SchemaSegment, StagedTable
from sluice.spark_jobs.batch.context import BatchContext
from sluice.spark_jobs.batch.results import BatchResults
from sluice.spark_jobs.cascades.derive import NOT_FOUND, carried_out
from sluice.spark_jobs.errors import (
    MergeError,
    SparkJobError,
    SparkUnavailableError,
    StagedBatchError,
    TableError,
)
from sluice.spark_jobs.fence import Fence
from sluice.spark_jobs.merging.merge import merge_table, staged_at
from sluice.spark_jobs.quarantine.append import append_quarantine
from sluice.spark_jobs.session import (
    SESSIONS_MIN,
    LakeSession,
    SparkSettings,
    first_line,
    is_away,
    open_sessions,
    table_error,
)
from sluice.spark_jobs.side_tables.write import (
    Share,
    is_large,
    names_given,
    refuse_unlogged,
    write_alone,
    write_side_tables,
)
from sluice.spark_jobs.small.job import SmallResult, merge_small_tables
from sluice.spark_jobs.small.merge import SmallJob
from sluice.spark_jobs.snapshot.buffering import SnapshotBuffers
from sluice.spark_jobs.snapshot.table_buffering import Buffering
from sluice.spark_jobs.staged_batch import StagedBatch
from sluice.spark_jobs.table_locks import Writing
from sluice.spark_jobs.targets import ways
from sluice.spark_jobs.targets.report import TableTarget

logger = logging.getLogger(__name__)

# A small merge waits this long for the lock of a table that another run writes. After that, the table is merged by Spark, which waits
# longer.
SMALL_LOCK_SECONDS = 5.0


def merge_batch(
    batch: StagedBatch,
    tables: Mapping[str, TableTarget],
    spark: SparkSettings,
    context: BatchContext | None = None,
    *,
    on_table_done: Callable[[TableReport], None] = lambda _: None,
    on_merged: Callable[[StagedBatch], object] = lambda _: None,
) -> list[TableReport]:
    """Merges the tables of `batch` that `tables` names. Returns their reports in the manifest's order.

    - `tables` has the target of each "database.table". The caller leaves out stopped tables, and their changes are not merged.
    - `context` is None for a merge from the command line. `context.target_of` also finds targets of tables that are not in the batch. A
      table of the batch that was renamed takes over the rows of the table with its old name, and needs that table's target.
    - `on_table_done` is called in this thread with the report of each table that was merged or buffered.
    - `on_merged` is called once, after all tables were merged or buffered without an error. It is not called if `tables` is empty.

    Raises StagedBatchError, before anything is merged, if the batch has no changes of one of `tables`. Raises SparkUnavailableError if
    Spark is not available. If a table could not be merged, raises MergeError after the other tables have finished. The call can always be
    repeated with the same batch.
    """
    context = context or BatchContext()
    unknown = sorted(tables.keys() - {table.name for table in batch.tables})
    if unknown:
        raise StagedBatchError(
            f"{batch.directory} has no changes of {', '.join(unknown)}, although the run should merge changes "
            "of these tables; Sluice stages the batch again"
        )
    batch = dataclasses.replace(batch, tables=tuple(table for table in batch.tables if table.name in tables))
    refuse_unlogged(batch, tables)
    append_quarantine(batch, context.quarantine_path, context.storage_options, context.fence)
    if not batch.tables:
        return []
    found = _merge_tables(batch, tables, spark, _with_targets(context, tables), on_table_done)
    if found.errors:
        raise _batch_error(batch, found.reports, found.errors)
    on_merged(batch)
    return [found.reports[table.name] for table in batch.tables]


def _with_targets(context: BatchContext, tables: Mapping[str, TableTarget]) -> BatchContext:
    """Returns a context whose `target_of` finds the targets in `tables` too."""
    return dataclasses.replace(context, target_of=lambda name: tables.get(name) or context.target_of(name))


def _merge_tables(
    batch: StagedBatch,
    targets: Mapping[str, TableTarget],
    spark: SparkSettings,
    context: BatchContext,
    on_table_done: Callable[[TableReport], None],
) -> BatchResults:
    """Merges all tables of the batch, and buffers the changes of tables with a running snapshot. Errors of single tables are in the result.
    Raises SparkUnavailableError if the connection to Spark is lost, and any other error that concerns all tables.
    """
    buffering = Buffering(batch, targets, context.fence, context.buffers, on_table_done)
    results = BatchResults(on_table_done, buffering.reports, buffering.errors, context.conflicts)
    left = tuple(table for table in batch.tables if table.name not in buffering.names)
    buffering.buffer_others()  # Buffering needs no Spark session, so it is done before one is opened.
    needs_spark = any(
        table.name in buffering.names and is_large(_share(batch, table, targets[table.name], context))
        for table in batch.tables
    )
    count = _sessions_wanted(left, targets) or int(needs_spark)
    opened: AbstractContextManager[list[LakeSession]]
    opened = open_sessions(spark, count, context.fence) if count else nullcontext([])
    with opened as sessions:
        merged, refused = _carried_out(
            dataclasses.replace(batch, tables=left),
            targets,
            context.storage_options,
            sessions,
            context.fence,
            buffering,
        )
        _write_side_tables_of_buffered(sessions[0] if sessions else None, batch, targets, context, results)
        if left:
            who, shared = context.table_locks.who, any(target.shared for target in targets.values())
            holder = Writing.of(who, spark, sessions) if shared else Writing(who=who)
            work = _BatchWork(merged, targets, sessions, context, refused=refused, holder=holder, results=results)
            work.run_small()
            work.run()
            work.run_side_tables()
    return results


def _sessions_wanted(tables: Sequence[StagedTable], targets: Mapping[str, TableTarget]) -> int:
    """Returns how many Spark sessions to open: one per table that cannot be merged by a small merge (`_may_be_small`). The result is at
    least SESSIONS_MIN, but never more than the number of tables.
    """
    large = sum(not _may_be_small(table, targets[table.name]) for table in tables)
    return min(len(tables), max(SESSIONS_MIN, large))


def _may_be_small(table: StagedTable, target: TableTarget) -> bool:
    fits = table.rows <= ways.ROWS_MAX and table.bytes <= ways.BYTES_MAX
    return target.merge == "small" or (target.merge == "auto" and fits)


class _BatchWork:
    """Merges the tables of one batch in several Spark sessions. A session that becomes free merges the largest table that remains.

    `refused` has the tables whose changes by foreign keys could not be derived, with the error of each. `holder` describes this run to
    other runs that wait for a table lock.
    """

    def __init__(
        self,
        batch: StagedBatch,
        targets: Mapping[str, TableTarget],
        sessions: Sequence[LakeSession],
        context: BatchContext,
        *,
        refused: Mapping[str, TableError],
        holder: Writing,
        results: BatchResults,
    ) -> None:
        self._batch, self._targets, self._context = batch, targets, context
        self._refused, self._holder, self._results = refused, holder, results
        self._session_count = len(sessions)
        self._free: queue.SimpleQueue[LakeSession] = queue.SimpleQueue()
        for session in sessions:
            self._free.put(session)
        # Table name → why the small merges left this table to Spark.
        self._reasons: dict[str, str] = {}
        # Path of a Delta table → the lock that a merge into this path holds. Several shards have one path, so two merges could otherwise
        # write one Delta table at the same time.
        self._alone: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def run_small(self) -> None:
        """Merges the small tables of the batch. The first job merges all tables whose table lock no other run holds. Further jobs merge the
        tables whose lock another run held, one Delta table after the other. If another run keeps the lock for SMALL_LOCK_SECONDS, `run`
        merges the table later.

        The run waits for a table lock only while it holds no other table lock, so two runs cannot block each other. Raises
        SparkUnavailableError if the connection to Spark is lost.
        """
        small = [
            table
            for table in self._current_state_tables()
            if table.name not in self._refused and _may_be_small(table, self._targets[table.name])
        ]
        if not small or self._context.fence.refusal():
            return
        busy = self._merge_small(small, 0.0)
        for path in dict.fromkeys(self._targets[table.name].path for table in busy):
            if self._context.fence.refusal():
                return
            of_path = [table for table in busy if self._targets[table.name].path == path]
            left = self._merge_small(of_path, SMALL_LOCK_SECONDS)
            self._reasons.update({table.name: "another run had the lock of the Delta table" for table in left})

    def _merge_small(self, tables: list[StagedTable], wait_seconds: float) -> list[StagedTable]:
        """Merges small tables in one job. Returns the tables that were not merged because another run holds their table lock. If a table
        lock is lost, or if its record store does not answer, returns [], and `run` merges the tables later.
        """
        ours: dict[str, bool] = {}
        results: dict[str, SmallResult] = {}
        try:
            with ExitStack() as locks, self._session() as session:
                for path, table in {self._targets[table.name].path: table for table in tables}.items():
                    ours[path] = locks.enter_context(self._table_lock(table, wait_seconds))
                mine = [table for table in tables if ours[self._targets[table.name].path]]
                jobs = self._small_jobs(mine)
                results = merge_small_tables(session, jobs) if jobs else {}
        # The record store of the table locks did not answer, or a table lock was lost. `run` then merges these tables with Spark, and skips
        # changes that a Delta table already has.
        except TableError as error:
            logger.warning("the small merges of the batch did not finish, so Spark merges their tables: %s", error)
            return []
        records = {name: each.record for name, each in results.items() if each.record is not None}
        self._context.records.keep_all(records)
        for name, result in results.items():
            self._context.conflicts.add(name, result.conflicts)
            if result.error is not None:
                self._results.fail(name, result.error)
            elif result.report is not None:
                self._results.add(result.report)
            else:
                self._reasons[name] = result.declined
        return [table for table in tables if not ours[self._targets[table.name].path]]

    def _table_lock(self, table: StagedTable, wait_seconds: float | None = None) -> AbstractContextManager[bool]:
        target, context = self._targets[table.name], self._context
        return context.table_locks.at(
            *(table.name, target.path, self._holder, context.fence), shared=target.shared, wait_seconds=wait_seconds
        )

    def _current_state_tables(self) -> list[StagedTable]:
        """Returns the staged tables whose target is a current-state table, the largest first."""
        found = [table for table in self._batch.tables if self._targets[table.name].current_state]
        return sorted(found, key=lambda table: table.bytes, reverse=True)

    def _small_jobs(self, tables: Iterable[StagedTable]) -> list[SmallJob]:
        """Returns the SmallJob of each table. If a SmallJob cannot be created, records the error for its table and continues."""
        jobs = []
        for table in tables:
            try:
                jobs.append(self._small_job(table))
            except Exception as error:
                self._results.fail(table.name, error)
        return jobs

    def _small_job(self, table: StagedTable) -> SmallJob:
        return SmallJob(
            batch=dataclasses.replace(self._batch, tables=(), cascades=()),
            staged=table,
            target=self._targets[table.name],
            known=self._context.records.get(table.name),
            staged_at=staged_at(self._batch),
            storage_options=self._context.storage_options,
            makes_tables=False,
            run=self._context.run,
        )

    def run(self) -> None:
        """Merges each remaining table with Spark. Tables that several destinations write come last, because the run may wait for their
        table locks.
        """
        left = [table for table in self._current_state_tables() if table.name not in self._results]
        left.sort(key=lambda table: self._targets[table.name].shared)
        with ThreadPoolExecutor(self._session_count, thread_name_prefix="merge") as pool:
            futures: dict[Future[TableReport], str] = {pool.submit(self._merge, table): table.name for table in left}
            for future in as_completed(futures):
                error = future.exception()
                if error is None:
                    self._results.add(future.result())
                elif isinstance(error, Exception):
                    self._results.fail(futures[future], error)
                else:
                    raise error

    def _merge(self, table: StagedTable) -> TableReport:
        target = self._targets[table.name]
        with self._alone[target.path], self._table_lock(table), self._session() as session:
            self._context.fence.check(table.name)
            if table.name in self._refused:
                raise self._refused[table.name]
            _refuse_rows_of_buffered(table, self._context.buffers)
            reason = self._reasons.get(
                table.name,
                "the table has too many changes for a small merge" if target.merge == "auto" else ways.CONFIGURED,
            )
            return merge_table(session, self._batch, table, target, self._context, reason=reason)

    def run_side_tables(self) -> None:
        """Writes the batch into the change logs and histories: those of the tables merged so far, and those of tables without a
        current-state table. If this fails for a table, the table is recorded as failed, although its current-state table was merged.
        """
        due = [table for table in self._batch.tables if self._is_due_in_side_tables(table.name)]
        if not due:
            return
        with self._session() as session:
            for table in due:
                try:
                    self._write_side_tables(session, table)
                except Exception as error:  # Any error is recorded, so the other tables continue.
                    self._results.fail(table.name, error)

    def _write_side_tables(self, session: LakeSession, table: StagedTable) -> None:
        self._context.fence.check(table.name)
        if table.name in self._refused:
            raise self._refused[table.name]
        share = _share(self._batch, table, self._targets[table.name], self._context)
        if share.target.current_state:
            write_side_tables(session, share)
        else:
            self._results.add(write_alone(session, share))

    def _is_due_in_side_tables(self, name: str) -> bool:
        target = self._targets[name]
        return (
            name in self._results.reports
            if target.current_state and target.has_side_tables
            else not target.current_state
        )

    @contextmanager
    def _session(self) -> Iterator[LakeSession]:
        session = self._free.get()
        try:
            yield session
        finally:
            self._free.put(session)


def _share(batch: StagedBatch, table: StagedTable, target: TableTarget, context: BatchContext) -> Share:
    return Share(batch=batch, staged=table, target=target, context=context, renamed=names_given(batch))


def _carried_out(  # noqa: PLR0917  one caller
    batch: StagedBatch,
    targets: Mapping[str, TableTarget],
    storage_options: Mapping[str, str],
    sessions: Sequence[LakeSession],
    fence: Fence,
    buffering: Buffering,
) -> tuple[StagedBatch, dict[str, TableError]]:
    """Adds to the batch the changes that foreign keys made without row events (`cascades.carried_out`). For tables with a running snapshot,
    buffers these changes instead. Returns the batch, and the error of each table that must not be merged because such changes are unknown.

    If the fence no longer allows writes, returns the batch unchanged. The refusal becomes the error of each table that has a running
    snapshot and that foreign keys may change. The other tables fail when their merges check the fence.
    """
    if why := fence.refusal():
        buffering.refuse_live(why)
        return batch, {}
    if not batch.tables and not buffering.live:
        return batch, {}
    session = sessions[0] if sessions else None
    try:
        found, refused = carried_out(
            session, batch, targets, storage_options, buffering.complete(), buffering.buffer_live
        )
        buffering.refuse_live(NOT_FOUND, refused)
        return found, refused
    except Exception as error:
        if is_away(error):
            sentence = (
                f"the connection to Spark was lost before the merge ({first_line(error)}); Sluice tries the batch again"
            )
            raise SparkUnavailableError(sentence) from error
        raise


def _write_side_tables_of_buffered(
    session: LakeSession | None,
    batch: StagedBatch,
    targets: Mapping[str, TableTarget],
    context: BatchContext,
    results: BatchResults,
) -> None:
    """Writes the batch into the change logs and histories of tables with a running snapshot. Change logs and histories do not wait for the
    snapshot; only current-state tables do. `session` may be None if all of these tables are small.
    """
    for table in batch.tables:
        if table.name in results.reports and targets[table.name].has_side_tables:
            try:
                write_side_tables(session, _share(batch, table, targets[table.name], context))
            except Exception as error:  # Any error is recorded, so the other tables continue.
                results.fail(table.name, error)


def _refuse_rows_of_buffered(table: StagedTable, buffers: SnapshotBuffers) -> None:
    """Raises TableError if the table was renamed while a snapshot of its old name was running. The renamed table would take over rows that
    are still incomplete.
    """
    for segment in table.segments:
        origin = segment.renamed_from if isinstance(segment, SchemaSegment) else ""
        if origin and buffers.get(origin) is not None:
            reason = (
                f"the table was renamed from {origin} while a snapshot of {origin} was in progress, so rows "
                "are missing in the lake; re-snapshot the table with `sluice snapshot start`"
            )
            raise TableError(table.name, reason, state="DDL_UNSUPPORTED", for_good=True)


def _batch_error(
    batch: StagedBatch, reports: Mapping[str, TableReport], errors: Mapping[str, Exception]
) -> SparkJobError:
    """Returns one error for the whole batch. The error has the message of the first failed table in the manifest's order, and names the
    tables that were merged and those that failed. If the connection to Spark was lost, returns a SparkUnavailableError.
    """
    failed = tuple(table.name for table in batch.tables if table.name in errors)
    merged = tuple(table.name for table in batch.tables if table.name in reports)
    away = next((error for error in errors.values() if is_away(error)), None)
    if away is not None:
        names, why = ", ".join(failed), first_line(away)
        sentence = f"the connection to Spark was lost during the merge of {names} ({why}); Sluice tries the batch again"
        result: SparkJobError = SparkUnavailableError(sentence)
    else:
        failures = [table_error(name, errors[name]) for name in failed]
        result = MergeError(str(failures[0]), merged, failed, tuple(error for error in failures if error.own))
    result.__cause__ = away or errors[failed[0]]
    return result
