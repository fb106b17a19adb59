"""Merges a whole staged batch: the small tables in one job, then the others in parallel, never two merges of one table at once.

Called by a Dagster run or from the command line.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sluice.batch_manifest.values import SchemaSegment, StagedTable
from sluice.spark_jobs.cascades.derive import NOT_FOUND, carried_out
from sluice.spark_jobs.errors import (
    MergeError,
    SparkJobError,
    SparkUnavailableError,
    StagedBatchError,
    TableError,
)
from sluice.spark_jobs.fence import BY_HAND, Fence
from sluice.spark_jobs.local_copy import local_copy
from sluice.spark_jobs.merging.merge import NO_RECORDS, merge_table, staged_at
from sluice.spark_jobs.quarantine.append import append_quarantine
from sluice.spark_jobs.session import LakeSession, SparkSettings, first_line, is_away, open_sessions, table_error
from sluice.spark_jobs.side_tables.write import Share, names_given, refuse_unlogged, write_alone, write_side_tables
from sluice.spark_jobs.small.job import SmallResult, merge_small_tables
from sluice.spark_jobs.small.merge import SmallJob
from sluice.spark_jobs.snapshot.buffering import NO_SNAPSHOT_BUFFERS, SnapshotBuffers
from sluice.spark_jobs.snapshot.table_buffering import Buffering
from sluice.spark_jobs.staged_batch import StagedBatch, read_staged_batch
from sluice.spark_jobs.table_locks import NO_TABLE_LOCKS, TableLocks, Writing
from sluice.spark_jobs.table_owner import TableRecords
from sluice.spark_jobs.targets import ways
from sluice.spark_jobs.targets.report import TableReport, TableTarget

logger = logging.getLogger(__name__)

PARALLEL_TABLES = 2
# How long a small merge waits for the lock of a table that another run writes. After that, Spark merges the table by itself and waits
# longer.
SMALL_TURN_SECONDS = 5.0


def merge_batch(
    batch_dir: Path,
    tables: Mapping[str, TableTarget],
    spark: SparkSettings,
    *,
    on_table_done: Callable[[TableReport], None] | None = None,
    fence: Fence = BY_HAND,
    parallelism: int = PARALLEL_TABLES,
    storage_options: Mapping[str, str] | None = None,
    quarantine_path: str = "",
    records: TableRecords = NO_RECORDS,
    target_of: Callable[[str], TableTarget] | None = None,
    run: str = "",
    holds: SnapshotBuffers = NO_SNAPSHOT_BUFFERS,
    on_merged: Callable[[StagedBatch], object] = lambda _: None,
    stored: str = "",
    table_locks: TableLocks = NO_TABLE_LOCKS,
) -> list[TableReport]:
    """Merges the requested tables of the batch. Returns their reports in the manifest's order.

    - `tables`: "database.table" → target; a table of the batch that is not in it is stopped and is skipped.
    - `on_table_done`: called in this thread after each table.
    - `fence`: checked immediately before each table and each commit, in any thread.
    - `storage_options`: deltalake's options if lake or staged files are not local.
    - `quarantine_path`: the Delta table for values that could not be decoded.
    - `records`: the state that earlier runs left in each table.
    - `target_of`: returns the target of the name that a table had before a RENAME; by default looks in `tables`.
    - `run`: the ID of the merge run, which is stored in the commits.
    - `holds`: tables with a running snapshot; their changes are buffered, not merged.
    - `on_merged`: called once the batch is in all of its tables.
    - `stored`: URL of the batch's files in an object store; a run copies the files that it reads itself to `batch_dir` or next to it.
    - `table_locks`: of tables that runs of other destinations also write.

    Raises StagedBatchError before anything is merged; SparkUnavailableError if Spark is or becomes unavailable; MergeError, after the
    other tables have finished, if a table could not be merged. Calling it again with the same batch is always safe.
    """
    with local_copy(batch_dir, stored, storage_options or {}) as folder:
        batch = read_staged_batch(folder, stored)
        unknown = sorted(tables.keys() - {table.name for table in batch.tables})
        if unknown:
            raise StagedBatchError(
                f"{batch_dir} has no changes of {', '.join(unknown)}, which are to be merged from it"
            )
        batch = dataclasses.replace(batch, tables=tuple(table for table in batch.tables if table.name in tables))
        refuse_unlogged(batch, tables)
        append_quarantine(batch, quarantine_path, storage_options or {}, fence)
        if not batch.tables:
            return []
        told = on_table_done or _ignore
        buffering = Buffering(batch, tables, fence, holds, told)
        reports, errors = buffering.reports, buffering.errors
        left = tuple(table for table in batch.tables if table.name not in buffering.names)
        merged = dataclasses.replace(batch, tables=left)
        share = functools.partial(
            Share,
            batch=batch,
            storage_options=storage_options or {},
            run=run,
            origin_of=target_of or tables.get,
            renamed=names_given(batch),
            records=records,
            fence=fence,
        )
        held = [share(staged=table, target=tables[table.name]) for table in batch.tables]
        with ExitStack() as stack:
            buffering.buffer_others()  # before Spark, which they do not need
            sessions = stack.enter_context(open_sessions(spark, min(parallelism, len(left)), fence)) if left else []
            merged, refused = _carried_out(merged, tables, storage_options or {}, sessions, fence, buffering)
            _write_side_tables_of_buffered(held, reports, errors)
            if left:
                work = _BatchWork(merged, tables, storage_options or {}, sessions, fence=fence, records=records)
                work.refused = refused
                work.target_of = target_of or tables.get
                work.run_id, work.holds = run, holds
                work.take_table_locks(table_locks, spark)
                work.run_small(told, reports, errors)
                work.run(told, reports, errors)
                work.run_side_tables(told, reports, errors)
        if errors:
            raise _batch_error(batch, reports, errors)
        on_merged(batch)
        return [reports[table.name] for table in batch.tables]


class _BatchWork:
    """The tables of one batch, distributed over a few Spark sessions; a free session takes the largest table that is left."""

    def __init__(
        self,
        batch: StagedBatch,
        targets: Mapping[str, TableTarget],
        storage_options: Mapping[str, str],
        sessions: list[LakeSession],
        *,
        fence: Fence,
        records: TableRecords,
    ) -> None:
        self._batch, self._targets, self._storage_options = batch, targets, storage_options
        self._free: queue.SimpleQueue[LakeSession] = queue.SimpleQueue()
        self._session_count, self._fence, self._records = len(sessions), fence, records
        self.refused: Mapping[str, TableError] = {}
        self.target_of: Callable[[str], TableTarget | None] = targets.get
        self.run_id = ""
        self._reasons: dict[str, str] = {}
        # by path, because shards share a table
        self._alone: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self.holds: SnapshotBuffers = NO_SNAPSHOT_BUFFERS
        self._turns, self._lanes = NO_TABLE_LOCKS, sessions
        self._writing = Writing(who=self._turns.who)
        for session in sessions:
            self._free.put(session)

    def take_table_locks(self, table_locks: TableLocks, spark: SparkSettings) -> None:
        """Uses table locks for tables that runs of other destinations also write."""
        self._turns = table_locks
        if any(target.shared for target in self._targets.values()):
            self._writing = Writing.of(table_locks.who, spark, self._lanes)

    def run_small(
        self, done: Callable[[TableReport], None], reports: dict[str, TableReport], errors: dict[str, Exception]
    ) -> None:
        """Merges the small tables and adds their reports and errors: first, in one job, all tables that no other run has locked, then the
        others one after the other.

        Waits for a table lock only while the run holds none. Raises SparkUnavailableError.
        """
        small = [table for table in self._mirrored() if self._may_be_small(table)]
        if not small or self._fence.refusal():
            return
        busy = self._merge_small(small, 0.0, done, reports, errors)
        for path in dict.fromkeys(self._targets[table.name].path for table in busy):
            if self._fence.refusal():
                return
            of_path = [table for table in busy if self._targets[table.name].path == path]
            left = self._merge_small(of_path, SMALL_TURN_SECONDS, done, reports, errors)
            self._reasons.update({table.name: "another run was at its Delta table" for table in left})

    def _merge_small(
        self,
        tables: list[StagedTable],
        wait_seconds: float,
        done: Callable[[TableReport], None],
        reports: dict[str, TableReport],
        errors: dict[str, Exception],
    ) -> list[StagedTable]:
        """Merges tables in one job. Returns the tables that another run has locked."""
        ours: dict[str, bool] = {}
        results: dict[str, SmallResult] = {}
        try:
            with ExitStack() as held, self._session() as session:
                for path, table in {self._targets[table.name].path: table for table in tables}.items():
                    shared = self._targets[table.name].shared
                    turn = self._turns.at(
                        *(table.name, path, self._writing, self._fence), shared=shared, wait_seconds=wait_seconds
                    )
                    ours[path] = held.enter_context(turn)
                mine = [table for table in tables if ours[self._targets[table.name].path]]
                jobs = self._small_jobs(mine, errors)
                results = merge_small_tables(session, jobs) if jobs else {}
        except TableError as error:  # of a table lock; Spark's merge finds out per table what was done
            logger.warning("Spark merges what was to be small: %s", error)
            return []
        self._records.keep_all({name: each.record for name, each in results.items() if each.record is not None})
        for name, result in results.items():
            if result.error is not None:
                errors[name] = result.error
            elif result.report is not None:
                reports[name] = result.report
                done(result.report)
            else:
                self._reasons[name] = result.declined
        return [table for table in tables if not ours[self._targets[table.name].path]]

    def _mirrored(self) -> list[StagedTable]:
        """Returns the tables that have a current-state table, the largest first."""
        found = [table for table in self._batch.tables if self._targets[table.name].mirror]
        return sorted(found, key=lambda table: table.bytes, reverse=True)

    def _may_be_small(self, table: StagedTable) -> bool:
        wish = self._targets[table.name].merge
        fits = table.rows <= ways.ROWS_MAX and table.bytes <= ways.BYTES_MAX
        return table.name not in self.refused and (wish == "small" or (wish == "auto" and fits))

    def _small_jobs(self, tables: Iterable[StagedTable], errors: dict[str, Exception]) -> list[SmallJob]:
        """Returns the jobs of the tables; a table whose job cannot be made has an error instead, of whatever kind."""
        jobs = []
        for table in tables:
            try:
                jobs.append(self._small_job(table))
            except Exception as error:
                errors[table.name] = error
        return jobs

    def _small_job(self, table: StagedTable) -> SmallJob:
        return SmallJob(
            batch=dataclasses.replace(self._batch, tables=(), cascades=()),
            staged=table,
            target=self._targets[table.name],
            known=self._records.get(table.name),
            staged_at=staged_at(self._batch),
            storage_options=self._storage_options,
            makes_tables=False,
            run=self.run_id,
        )

    def run(
        self, done: Callable[[TableReport], None], reports: dict[str, TableReport], errors: dict[str, Exception]
    ) -> None:
        """Merges each remaining table with Spark and adds the reports and errors. Tables whose lock may be taken are merged last."""
        left = [table for table in self._mirrored() if table.name not in reports and table.name not in errors]
        left.sort(key=lambda table: self._targets[table.name].shared)
        with ThreadPoolExecutor(self._session_count, thread_name_prefix="merge") as pool:
            futures: dict[Future[TableReport], str] = {pool.submit(self._merge, table): table.name for table in left}
            for future in as_completed(futures):
                error = future.exception()
                if error is None:
                    reports[futures[future]] = future.result()
                    done(future.result())
                elif isinstance(error, Exception):
                    errors[futures[future]] = error
                else:
                    raise error

    def _merge(self, table: StagedTable) -> TableReport:
        target = self._targets[table.name]
        turn = self._turns.at(table.name, target.path, self._writing, self._fence, shared=target.shared)
        with self._alone[target.path], turn, self._session() as session:
            self._fence.check(table.name)
            if table.name in self.refused:
                raise self.refused[table.name]
            _refuse_rows_of_buffered(table, self.holds)
            reason = self._reasons.get(table.name, "its changes are many" if target.merge == "auto" else ways.ASKED)
            return merge_table(
                *(session, self._batch, table, target, self._storage_options),
                records=self._records,
                target_of=self.target_of,
                run=self.run_id,
                reason=reason,
            )

    def run_side_tables(
        self, done: Callable[[TableReport], None], reports: dict[str, TableReport], errors: dict[str, Exception]
    ) -> None:
        """Brings the change logs and histories of the merged tables up to the batch, and those of tables without a current-state table. A
        failure makes the table fail.
        """
        wanted = [table for table in self._batch.tables if self._is_due_in_side_tables(table.name, reports)]
        if not wanted:
            return
        with self._session() as session:
            for table in wanted:
                try:
                    self._fence.check(table.name)
                    if table.name in self.refused:
                        raise self.refused[table.name]
                    if self._targets[table.name].mirror:
                        write_side_tables(session, self._share(table))
                    else:
                        reports[table.name] = write_alone(session, self._share(table))
                        done(reports[table.name])
                except Exception as error:  # reported with the errors of the merges
                    errors[table.name] = error
                if table.name in errors:
                    reports.pop(table.name, None)

    def _is_due_in_side_tables(self, name: str, reports: Mapping[str, TableReport]) -> bool:
        target = self._targets[name]
        return name in reports if target.mirror and target.beside else not target.mirror

    def _share(self, table: StagedTable) -> Share:
        return Share(
            batch=self._batch,
            staged=table,
            target=self._targets[table.name],
            storage_options=self._storage_options,
            run=self.run_id,
            origin_of=self.target_of,
            renamed=names_given(self._batch),
            records=self._records,
            fence=self._fence,
        )

    @contextmanager
    def _session(self) -> Iterator[LakeSession]:
        session = self._free.get()
        try:
            yield session
        finally:
            self._free.put(session)


def _carried_out(  # noqa: PLR0917  one caller
    batch: StagedBatch,
    targets: Mapping[str, TableTarget],
    storage_options: Mapping[str, str],
    sessions: Sequence[LakeSession],
    fence: Fence,
    buffering: Buffering,
) -> tuple[StagedBatch, dict[str, TableError]]:
    """Calls `cascades.carried_out`, which also buffers the changes of tables with a running snapshot that foreign keys may change. Does
    nothing if the batch may no longer be merged, which the fence then reports for each table.
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
                f"the connection to Spark was lost before the merge ({first_line(error)}); the batch is tried again"
            )
            raise SparkUnavailableError(sentence) from error
        raise


def _write_side_tables_of_buffered(
    shares: Iterable[Share], reports: dict[str, TableReport], errors: dict[str, Exception]
) -> None:
    """Writes change logs and histories of tables with a running snapshot, without Spark. They do not wait for the snapshot."""
    for share in shares:
        name = share.staged.name
        if name in reports and share.target.beside:
            try:
                write_side_tables(None, share)
            except Exception as error:  # of any kind: the other tables go on
                errors[name] = error
                del reports[name]


def _refuse_rows_of_buffered(table: StagedTable, holds: SnapshotBuffers) -> None:
    """Raises TableError if a table was renamed from a table with a running snapshot: the lake does not have all rows to take over."""
    for segment in table.segments:
        origin = segment.renamed_from if isinstance(segment, SchemaSegment) else ""
        if origin and holds.get(origin) is not None:
            reason = f"the table was {origin} before, whose snapshot was under way; take its rows with `sluice snapshot start`"
            raise TableError(table.name, reason, state="DDL_UNSUPPORTED", for_good=True)


def _batch_error(
    batch: StagedBatch, reports: Mapping[str, TableReport], errors: Mapping[str, Exception]
) -> SparkJobError:
    """Returns one error for the batch: that of the first failed table in the manifest's order, with the names of the merged and the
    failed tables.
    """
    failed = tuple(table.name for table in batch.tables if table.name in errors)
    merged = tuple(table.name for table in batch.tables if table.name in reports)
    away = next((error for error in errors.values() if is_away(error)), None)
    if away is not None:
        names, why = ", ".join(failed), first_line(away)
        sentence = f"the connection to Spark was lost during the merge of {names} ({why}); the batch is tried again"
        result: SparkJobError = SparkUnavailableError(sentence)
    else:
        told = [table_error(name, errors[name]) for name in failed]
        result = MergeError(str(told[0]), merged, failed, tuple(error for error in told if error.own))
    result.__cause__ = away or errors[failed[0]]
    return result


def _ignore(_: TableReport) -> None:
    """Does nothing. For callers that use only the returned reports."""
