"""Merges one table's segments into its Delta table, in one Spark session. `run_batch` calls this module. Two calls never merge the same
table at the same time.

Each segment is applied by a Delta commit with a transaction (`txnAppId`, and `txnVersion` = last order key). Further commits only create or
alter the table. The merge first reads the table's log, and leaves out the changes that are committed already. If another merge commits the
same transaction in between, Delta does not make the second commit. So no change is applied twice, even if the stream is split into other
batches or a batch is repeated.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import time
from collections.abc import Callable
from typing import Any

from sluice.batch_manifest.file import MANIFEST_FILE
from sluice.batch_manifest.table_report import TableReport
from sluice.batch_manifest.values import (
    ChangesSegment,
    LakeColumn,
    SchemaSegment,
    Segment,
    StagedTable,
    TruncateSegment,
)
from sluice.object_stores.files import is_in_store
from sluice.spark_jobs.conflicts import COMMIT_TRIES_MAX, CommitConflicts
from sluice.spark_jobs.durable_lake import sync_commits
from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.merging import fold, merge_sql
from sluice.spark_jobs.merging.context import BY_HAND_CONTEXT, MergeContext
from sluice.spark_jobs.session import LakeSession, first_line
from sluice.spark_jobs.staged_batch import (
    DELETED,
    StagedBatch,
    app_id_of,
    columns_before,
    first_lacking,
    last_order_key,
)
from sluice.spark_jobs.table_owner import LakeWriter, TableRecord, refuse_forgetting, refuse_unless_ours
from sluice.spark_jobs.tables import alteration_steps
from sluice.spark_jobs.tables.alterations import AlterationPlan, kept_columns
from sluice.spark_jobs.tables.commit_record import CommitCounts, commit_record, maintenance_record
from sluice.spark_jobs.tables.delta_table import (
    MAPPING_PROPERTY,
    DeltaTable,
    new_properties,
    schema_statements,
    wanted_columns,
)
from sluice.spark_jobs.tables.exact_bounds import fix_bounds
from sluice.spark_jobs.tables.new_table import Contents, first_commit
from sluice.spark_jobs.tables.renamed_table import Origins, take_over
from sluice.spark_jobs.tables.retyped_table import retype
from sluice.spark_jobs.tables.table_in_store import clear_path, make_empty
from sluice.spark_jobs.targets.casting import INTEGERS
from sluice.spark_jobs.targets.report import TableTarget
from sluice.spark_jobs.targets.shards import Shard, refuse_unmarked

VIEW = "sluice_staged"
# Matches the errors that Delta raises if another commit added or removed files meanwhile. Repeating the statement helps only after such an
# error. A changed schema and a repeated transaction give other errors.
CONFLICT = re.compile(r"DELTA_CONCURRENT_(APPEND|DELETE_READ|DELETE_DELETE|WRITE)")


def merge_table(
    session: LakeSession,
    batch: StagedBatch,
    staged: StagedTable,
    target: TableTarget,
    context: MergeContext = BY_HAND_CONTEXT,
    *,
    reason: str = "",
) -> TableReport:
    """Applies the segments of a staged table that the Delta table lacks, and returns the table's report. `reason` says in the report why
    Spark merges the table.

    Raises TableError before anything is written if the table has another owner, or was replaced since the record in `context.records`. Also
    raises any exception of Spark.
    """
    started, storage_options, records = time.monotonic(), context.storage_options, context.records
    app_id = batch.app_id(staged)
    table = DeltaTable(staged.name, target.path, app_id, storage_options, target.shard)
    writer = writer_of(batch, staged)
    origins = Origins(batch, writer, context.target_of, storage_options, records)
    merge = _TableMerge(session, table, target, app_id, writer, "", origins, context.conflicts)
    table.refresh()
    known = records.get(staged.name)
    refuse_other_owner(table, with_columns(writer, staged, table, target), known)
    refuse_unmarked(staged, target.shard)
    if table.snapshot.exists:
        record = maintenance_record(writer.owner, context.run)
        fix_bounds(session, table, storage_options, record, _first_key(staged))

    def apply(segment: Segment, applied_order_key: int) -> CommitCounts:
        recorded = dataclasses.replace(merge, user_metadata=commit_record(batch, staged, segment, context.run))
        return recorded.apply(segment, applied_order_key)

    report = apply_lacking(staged, table, apply, known, staged_at_seconds=staged_at(batch), started=started)
    if table.snapshot.exists:
        records.keep(staged.name, TableRecord(table_id=table.snapshot.table_id, version=table.snapshot.version))
    return dataclasses.replace(report, reason=reason)


def apply_lacking(
    staged: StagedTable,
    table: DeltaTable,
    apply: Callable[[Segment, int], CommitCounts],
    known: TableRecord | None,
    *,
    staged_at_seconds: float,
    started: float,
) -> TableReport:
    """Applies each segment that the table lacks, syncs the commits to disk, and returns the table's report. Spark merges and small merges
    call this, after they have refreshed the table and checked its owner. Raises TableError if the sync fails.

    `apply` gets a segment and the order key of the table's last commit, and returns the counts of its commits. `known` is the table's
    record, or None if it has none. `staged_at_seconds` is the time at which the batch was staged (`staged_at`). `started` is the value of
    `time.monotonic` before the merge of the table.
    """
    before = table.snapshot
    counts, committed = CommitCounts(), False
    for segment in staged.segments:
        if last_order_key(segment) > before.applied_order_key:
            counts, committed = counts + apply(segment, before.applied_order_key), True
    # The record `known` is stored after the sync of the commits up to its version, so the later commits are synced now. Without a record,
    # an earlier attempt may have committed without a sync. `since_seconds` then also selects the commits up to `on_disk` that were made
    # since the batch was staged.
    since = staged_at_seconds if known is None else 0.0
    on_disk = before.version if known is None else min(known.version, before.version)
    try:
        sync_commits(table.path, on_disk, table.snapshot.version, since_seconds=since)
    except OSError as error:
        raise TableError(
            staged.name, f"a commit to {table.path} could not be synced to disk: {error}; Sluice tries again"
        ) from error
    merge_ms = round((time.monotonic() - started) * 1000)
    return _report(staged, table, counts, version_before=before.version, skipped=not committed, merge_ms=merge_ms)


def _first_key(staged: StagedTable) -> str:
    keys = (segment.key for segment in staged.segments if not isinstance(segment, TruncateSegment))
    return next((key[0] for key in keys if key), "")


def writer_of(batch: StagedBatch, staged: StagedTable) -> LakeWriter:
    """Returns who writes the table, for the check whether this writer may write it (`table_owner`). The check refuses a writer if the table
    has a commit of a later delivery. So for a backfill or a repair, the delivery number is the highest possible one.
    """
    delivery = sys.maxsize if batch.backfill is not None else batch.delivery
    return LakeWriter(owner=batch.owner(staged), epoch=batch.epoch, delivery=delivery, start=batch.start, end=batch.end)


def with_columns(writer: LakeWriter, staged: StagedTable, table: DeltaTable, target: TableTarget) -> LakeWriter:
    """Returns `writer` with the columns that no other program may have removed from the Delta table. These are Sluice's own columns, and
    the columns that the source's table has before the first segment that the Delta table lacks.

    Leaves out columns that an earlier attempt may have dropped or renamed already for the DDL statement of this segment. Also leaves out
    columns that the source dropped later, because a backfill stages a table with its earlier columns. The result has no columns if the
    Delta table lacks no segment, or if the first segment empties the table or replaces it by a renamed one. A TRUNCATE that leaves rows of
    other shards, or rows that are marked as deleted, does not count as the first segment.
    """
    leaves_rows = target.shard is not None or target.deletes == "soft"
    first = first_lacking(staged, table.snapshot.applied_order_key, leaves_rows=leaves_rows)
    if first is None:
        return writer
    wanted = wanted_columns(columns_before(first), soft_deletes=target.deletes == "soft" and bool(first.key))
    needed = {column.name.lower() for column in wanted}
    changed = _changed_already(table, writer, first, needed) if isinstance(first, SchemaSegment) else set()
    dropped = {name.lower() for name in kept_columns(table.snapshot.properties)}
    return dataclasses.replace(writer, columns=needed - changed - dropped)


def _changed_already(table: DeltaTable, writer: LakeWriter, segment: SchemaSegment, before: set[str]) -> set[str]:
    """Returns the columns, in lower case, that an earlier attempt of a DDL statement may have dropped or renamed. `before` has the columns
    before the statement. If the epoch rose since that attempt, the order key differs and `has_begun` returns False. Then only a column with
    its new name shows that the attempt renamed it.
    """
    begun = alteration_steps.has_begun(table, app_id_of(writer.owner), segment)
    found = set[str]()
    for old, new in ((each.column.lower(), each.new_name.lower()) for each in segment.alterations):
        if begun or (new in table.snapshot.columns and new not in before):
            found |= {old, new}
    return found


def refuse_other_owner(table: DeltaTable, writer: LakeWriter, record: TableRecord | None) -> None:
    """Raises TableError if the Delta table has another owner, is missing although it has a record, or was replaced or restored by another
    program since the last run. Also raises it if the table has later changes than the ledger, or if Delta forgets its transactions.
    """
    refuse_unless_ours(writer, record, table.found(record, writer.owner.to_text()))
    refuse_forgetting(table.name, table.path, table.snapshot.properties)


def staged_at(batch: StagedBatch) -> float:
    """Returns when the batch was staged, in seconds since 1970 by the file system's clock. All commits of the batch are later."""
    return (batch.directory / MANIFEST_FILE).stat().st_mtime


@dataclasses.dataclass(frozen=True)
class _TableMerge:
    """Merges one table in one Spark session."""

    session: LakeSession
    table: DeltaTable
    target: TableTarget
    app_id: str
    writer: LakeWriter
    user_metadata: str
    origins: Origins
    conflicts: CommitConflicts

    def apply(self, segment: Segment, applied_order_key: int) -> CommitCounts:
        # Before the segment's own commit, other commits may create or alter the table. They must not get the metadata of the session's
        # previous commit.
        self.session.commit_without_metadata()
        match segment:
            case ChangesSegment():
                return self._change(segment, applied_order_key)
            case TruncateSegment():
                return self._truncate(segment)
            case SchemaSegment():
                return self._evolve(segment)

    def _change(self, segment: ChangesSegment, applied_order_key: int) -> CommitCounts:
        self._give_columns(segment.columns, segment.key)
        self.session.expect(segment.rows + self._rows_met(segment))
        self.session.sql(fold.staged_view(VIEW, segment, self.session.uploaded))
        left = alteration_steps.left_columns(segment, self.table, soft=self.target.deletes == "soft")
        scanned = self.table.scanned(segment.key[0], *_bounds(segment)) if segment.key else CommitCounts()
        applies = merge_sql.append_new if self._all_new(segment, scanned) else merge_sql.apply_changes
        statement = applies(VIEW, segment, self.target, applied_order_key, left)
        return self._commit(statement, segment.last_order_key) + scanned

    @staticmethod
    def _all_new(segment: ChangesSegment, scanned: CommitCounts) -> bool:
        """Returns whether file statistics prove that no file has a key of the segment. `scanned` counts the files that a merge would read.
        Only an integer key allows this proof, because only integers have exact bounds in the statistics.
        """
        first = next((each for each in segment.columns if each.name in segment.key[:1]), None)
        proves = first is not None and first.type in INTEGERS and not first.nullable
        return proves and not (scanned.files_scanned or segment.partial or segment.again)

    def _rows_met(self, segment: ChangesSegment) -> int:
        """Returns how many rows of the table a merge must read. Returns 0 for a table without a key, whose images are only appended."""
        if not segment.key:
            return 0
        return self.table.reach(segment.key[0], *_bounds(segment)).rows

    def _truncate(self, segment: TruncateSegment) -> CommitCounts:
        if not self.table.snapshot.exists:
            return CommitCounts()
        marks = self.target.deletes == "soft" and DELETED in self.table.snapshot.columns
        before = self._execute(merge_sql.truncate(segment, self.target, marks=marks), segment.order_key)
        if self.table.refresh().version > before:
            return self.table.own_commit(before, self.user_metadata, self.app_id, segment.order_key)
        # A DELETE that finds no rows makes no commit, so its transaction is not stored. Another statement makes a commit that stores the
        # transaction.
        return self._commit(merge_sql.nothing(self.target), segment.order_key)

    def _evolve(self, segment: SchemaSegment) -> CommitCounts:
        """Applies a schema change to the table. The DDL statement may have given values to existing rows, such as the DEFAULT of a new
        column. The binlog has no row events for these values, so they are set afterwards, in one commit.
        """
        if self.target.shard is not None:
            return self._evolve_shard(segment, self.target.shard)
        if segment.renamed_from:
            return self._take_over(segment)
        existed = self.table.snapshot.exists
        self.session.expect(self.table.row_count)
        if existed and (plan := alteration_steps.retyping_plan(self.table, self.app_id, segment)):
            return self._retype(segment, plan)
        plan = (
            alteration_steps.begin(self.session, self.table, self.app_id, segment)
            if existed and segment.alterations
            else None
        )
        self._give_columns(segment.columns, segment.key)
        values = {**(dict(plan.copies) if plan else {}), **merge_sql.fill_values(segment)}
        if not existed or not (values or plan):
            return CommitCounts()
        counts = CommitCounts()
        if plan is not None and plan.leftovers:
            if values:
                # Setting these values must not use the transaction of the schema change, because that transaction marks all steps of the
                # change as done. So this commit has another app id.
                values_id = f"{self.app_id}#values"
                counts = self._commit(
                    merge_sql.assign(values, segment.order_key, self.target), segment.order_key, values_id
                )
                values = {}
            alteration_steps.end(self.session, self.table, self.app_id, segment, plan)
        last = merge_sql.assign(values, segment.order_key, self.target) if values else merge_sql.nothing(self.target)
        return counts + self._commit(last, segment.order_key)

    def _retype(self, segment: SchemaSegment, plan: AlterationPlan) -> CommitCounts:
        """Converts columns, and adds the new columns of the same DDL statement, in one commit that rewrites all rows."""
        fills = merge_sql.fill_values(segment)
        counts = self._commit(
            retype(self.table, segment, self.target, plan, {**fills, **dict(plan.retyped)}), segment.order_key
        )
        return dataclasses.replace(counts, rows_inserted=0, rows_copied=counts.rows_inserted)

    def _evolve_shard(self, segment: SchemaSegment, shard: Shard) -> CommitCounts:
        """Applies a schema change of one shard. New columns are added for all shards, because the table has the columns of all shards.
        Values are set only in the rows of this shard.
        """
        existed = self.table.snapshot.exists
        values = alteration_steps.alter_shard(self.session, self.table, shard, segment) if existed else {}
        self._give_columns(segment.columns, segment.key)
        values |= merge_sql.fill_values(segment)
        if not existed or not (values or segment.alterations):
            return CommitCounts()
        self.session.expect(self.table.row_count)
        last = merge_sql.assign(values, segment.order_key, self.target) if values else merge_sql.nothing(self.target)
        return self._commit(last, segment.order_key)

    def _take_over(self, segment: SchemaSegment) -> CommitCounts:
        """Replaces the table's columns and rows, in one commit, by those of the table that was renamed to this name."""
        origin = self.origins.find(self.table.name, segment)
        self.session.expect(max(origin.rows, self.table.row_count))
        # If two tables swap names, the other table may already be merged, and then has the rows of this table. In this case, `find` returns
        # the version of the other table before the swap.
        statement = take_over(self.table, segment, self.target, origin, self.writer.owner)
        return self._commit(statement, segment.order_key)

    def _give_columns(self, source: tuple[LakeColumn, ...], key: tuple[str, ...]) -> None:
        wanted = wanted_columns(source, soft_deletes=self.target.deletes == "soft" and bool(key))

        def due() -> list[str]:
            return schema_statements(self.table, self.target, wanted, key, self.writer.owner.to_text())

        def check(table: DeltaTable) -> None:
            if not table.snapshot.exists and is_in_store(table.path):
                self._create_in_store(wanted, key)
            # Another run may have created the table at the same moment, so its owner is checked again.
            refuse_other_owner(table, self.writer, None)

        if not self.table.snapshot.exists:
            clear_path(self.table.name, self.table.path, self.table.storage_options, self.session.fence)
        alteration_steps.alter(self.session, self.table, due, check)

    def _create_in_store(self, wanted: tuple[LakeColumn, ...], key: tuple[str, ...]) -> None:
        """Creates the table without Spark. Call this if Spark's CREATE TABLE has done nothing: a killed attempt has left an empty
        directory, which Spark takes for the table. Raises TableError if only Spark can create this table.
        """
        properties = new_properties(self.target, wanted, key, self.writer.owner.to_text())
        if self.target.layout or MAPPING_PROPERTY in properties or self.session.defaults_of_tables():
            why = (
                f"Spark does not create the Delta table {self.table.path}, because an attempt that was killed has left "
                "an empty directory at this path; remove this directory from the store, then Sluice creates the table"
            )
            raise TableError(self.table.name, why)
        commit = first_commit(wanted, properties, Contents())
        make_empty(self.table.name, self.table.path, commit, self.table.storage_options, self.session.fence)
        self.table.refresh()

    def _commit(self, statement: str, version: int, app_id: str = "") -> CommitCounts:
        """Makes one Delta commit and returns its counts, which are empty if the table already has the transaction."""
        before = self._execute(statement, version, app_id)
        self.table.refresh()
        return self.table.own_commit(before, self.user_metadata, app_id or self.app_id, version)

    def _execute(self, statement: str, version: int, app_id: str = "") -> int:
        """Executes a statement whose commit has the Delta transaction (`app_id`, `version`). Repeats the statement after a conflict with
        maintenance. Returns the table's version before the last attempt.
        """
        before = self.table.snapshot.version
        for tried in range(1, COMMIT_TRIES_MAX + 1):
            self.session.commit_as(app_id or self.app_id, version, self.user_metadata)
            try:
                self.session.commit(self.table.name, statement)
                break
            except TableError:  # The fence raised this error before the commit was attempted.
                raise
            # If the MERGE failed because the row of an update is missing, a later line of Spark's error has the text UNKNOWN_ROW. The first
            # line says only that a task failed.
            except Exception as error:
                if reason := merge_sql.unknown_row(str(error)):
                    raise TableError(self.table.name, reason) from error
                if not CONFLICT.search(str(error)):
                    raise
                before = self._after_conflict(error, last=tried == COMMIT_TRIES_MAX)
        return before

    def _after_conflict(self, error: Exception, *, last: bool) -> int:
        """Called after a commit failed because another writer had committed first. Returns the table's version, for the next attempt.
        Raises TableError if this was the last attempt (`last`), or if the other commit did more than maintenance.
        """
        self.conflicts.add(self.table.name)
        seen = self.table.snapshot
        self.table.refresh()
        record = TableRecord(table_id=seen.table_id, version=seen.version)
        refuse_other_owner(self.table, self.writer, record)
        if last:
            why = (
                f"other writers committed to the Delta table {self.table.path} before each attempt of the merge "
                f"({first_line(error)}); Sluice tries the batch again"
            )
            raise TableError(self.table.name, why, own=False) from error
        return self.table.snapshot.version


def _bounds(segment: ChangesSegment) -> tuple[Any, Any]:
    """Returns the lowest and the highest value of the first key column from the manifest, or None for each that is unknown."""
    low, high = ((bounds or (None,))[0] for bounds in (segment.key_min, segment.key_max))
    return low, high


def _report(
    staged: StagedTable,
    table: DeltaTable,
    counts: CommitCounts,
    *,
    version_before: int,
    skipped: bool,
    merge_ms: int,
) -> TableReport:
    changes = [segment for segment in staged.segments if isinstance(segment, ChangesSegment)]
    size = table.size
    return TableReport(
        database=staged.database,
        table=staged.table,
        path=table.path,
        **dataclasses.asdict(counts),
        source_rows=staged.rows,
        bytes=staged.bytes,
        merge_ms=merge_ms,
        delta_version=table.snapshot.version,
        delta_version_before=version_before,
        source_inserts=sum(segment.inserts for segment in changes),
        source_updates=sum(segment.updates for segment in changes),
        source_deletes=sum(segment.deletes for segment in changes),
        start_order_key=min((_first_order_key(segment) for segment in staged.segments), default=-1),
        end_order_key=max((last_order_key(segment) for segment in staged.segments), default=-1),
        first_commit_time_us=min((_first_commit_time_us(segment) for segment in staged.segments), default=0),
        last_commit_time_us=max((_last_commit_time_us(segment) for segment in staged.segments), default=0),
        columns=table.snapshot.schema,
        skipped=skipped,
        table_rows=size.rows if size else None,
        table_bytes=size.bytes if size else None,
    )


def _first_order_key(segment: Segment) -> int:
    return segment.first_order_key if isinstance(segment, ChangesSegment) else segment.order_key


def _first_commit_time_us(segment: Segment) -> int:
    return segment.first_commit_time_us if isinstance(segment, ChangesSegment) else segment.commit_time_us


def _last_commit_time_us(segment: Segment) -> int:
    return segment.last_commit_time_us if isinstance(segment, ChangesSegment) else segment.commit_time_us
