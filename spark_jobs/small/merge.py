"""Merges one table's part of a batch with `deltalake`. `small.job` calls this module, in a task of a Spark job or in a thread of the run.

The checks, transactions and conditions are those of `merging.merge`, on the same segments. Each commit is attempted once. If another
program committed first, the whole merge starts again, because the other commit may have the same changes. Tables with features that
`deltalake` does not support are left to Spark.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, PostCommitHookProperties, QueryBuilder, Transaction, exceptions, write_deltalake

from sluice.batch_manifest.table_report import TableReport
from sluice.batch_manifest.values import (
    ChangesSegment,
    LakeColumn,
    SchemaSegment,
    Segment,
    StagedTable,
    TruncateSegment,
)
from sluice.spark_jobs.conflicts import COMMIT_TRIES_MAX, CommitConflicts
from sluice.spark_jobs.durable_lake import before_checkpoint, local_folder
from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.merging import fold, merge_sql
from sluice.spark_jobs.merging.merge import apply_lacking, refuse_other_owner, with_columns, writer_of
from sluice.spark_jobs.small import append, fold_arrow
from sluice.spark_jobs.staged_batch import COMMIT_TIME, DELETED, OPERATION, ORDER_KEY, StagedBatch, last_order_key
from sluice.spark_jobs.table_owner import LakeWriter, TableRecord
from sluice.spark_jobs.tables import alteration_steps
from sluice.spark_jobs.tables.commit_record import CommitCounts, commit_record
from sluice.spark_jobs.tables.delta_table import (
    CHECKPOINT_COMMITS,
    MAPPING_PROPERTY,
    DeltaTable,
    Reach,
    new_properties,
    schema_statements,
    wanted_columns,
)
from sluice.spark_jobs.tables.exact_bounds import may_be_rounded, writer_properties
from sluice.spark_jobs.tables.new_table import make_table
from sluice.spark_jobs.targets.report import TableTarget
from sluice.spark_jobs.targets.shards import refuse_unmarked
from sluice.spark_jobs.targets.ways import MergeChoice, MergeFacts, choose

CLEANING_PROPERTY = "delta.enableExpiredLogCleanup"
CHECKPOINT_PROPERTY = "delta.checkpointInterval"
INTEGERS = frozenset({"tinyint", "smallint", "int", "bigint"})
STAGED, LAKE = "s", "t"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SmallJob:
    """One table's part of a batch, for a small merge.

    - `batch` is the batch without its tables.
    - `known` is the record that the last run stored for the table, or None if there is none.
    - `staged_at` is the time of staging, in seconds since 1970 by the file system's clock.
    - `makes_tables` lets the task create a missing table.
    - `run` is the id of the run, which is stored in the commits.
    """

    batch: StagedBatch
    staged: StagedTable
    target: TableTarget
    known: TableRecord | None
    staged_at: float
    storage_options: Mapping[str, str]
    makes_tables: bool
    run: str = ""


class FolderTakenError(Exception):
    """Raised if the table's folder contains files but is not a Delta table."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Declined:
    """The result for a table that Spark must merge. deltalake merges the segments in order, so the segments before the first unsupported
    segment may be merged already.
    """

    reason: str


def merge_small(job: SmallJob, conflicts: CommitConflicts) -> tuple[TableReport, TableRecord] | Declined:
    """Merges those segments of `job.staged` that the Delta table does not have yet. Returns Declined if Spark must merge the table.
    `conflicts` counts how often another writer committed first. Raises TableError if the table has another owner or was replaced since the
    last run, and also if a row image lacks columns and the table does not have the row. Any other exception of deltalake is raised
    unchanged.
    """
    for _ in range(COMMIT_TRIES_MAX):
        try:
            return _merge_once(job)
        except exceptions.CommitFailedError:
            conflicts.add(job.staged.name)
    return Declined(reason=f"another writer committed to the Delta table first, {COMMIT_TRIES_MAX} times in a row")


def _merge_once(job: SmallJob) -> tuple[TableReport, TableRecord] | Declined:
    started = time.monotonic()
    app_id = job.batch.app_id(job.staged)
    table = DeltaTable(job.staged.name, job.target.path, app_id, job.storage_options, job.target.shard, quick=True)
    table.refresh()
    writer = writer_of(job.batch, job.staged)
    refuse_other_owner(table, with_columns(writer, job.staged, table, job.target), job.known)
    refuse_unmarked(job.staged, job.target.shard)
    merge = _SmallMerge(table, job.target, app_id, writer, "", job.storage_options)
    choice = choose(job.target.merge, merge.facts(job.staged, makes=job.makes_tables))
    if choice.way == "spark":
        return Declined(reason=choice.reason)

    def apply(segment: Segment, applied_order_key: int) -> CommitCounts:
        recorded = dataclasses.replace(merge, user_metadata=commit_record(job.batch, job.staged, segment, job.run))
        return recorded.apply(segment, applied_order_key)

    try:
        report = apply_lacking(job.staged, table, apply, job.known, staged_at_seconds=job.staged_at, started=started)
    except FolderTakenError:
        return Declined(reason=f"the folder {job.target.path} exists and is not a Delta table")
    except fold_arrow.DuplicateKeysError:
        return Declined(reason="the Delta table has two rows with the same key")
    record = TableRecord(table_id=table.snapshot.table_id, version=table.snapshot.version)
    return _with_choice(report, choice), record


def _with_choice(report: TableReport, choice: MergeChoice) -> TableReport:
    return dataclasses.replace(report, way=choice.way, reason=choice.reason)


@dataclasses.dataclass(frozen=True)
class _SmallMerge:
    """Merges one table in one task."""

    table: DeltaTable
    target: TableTarget
    app_id: str
    writer: LakeWriter
    user_metadata: str
    storage_options: Mapping[str, str]

    def facts(self, staged: StagedTable, *, makes: bool) -> MergeFacts:
        snapshot = self.table.snapshot
        lacking = tuple(each for each in staged.segments if last_order_key(each) > snapshot.applied_order_key)
        changes = [segment for segment in lacking if isinstance(segment, ChangesSegment)]
        reaches = [self._reach(segment) for segment in changes] if snapshot.exists else []
        return MergeFacts(
            exists=snapshot.exists,
            makes=makes and not self.target.layout and local_folder(self.table.path) is not None,
            ruled=snapshot.ruled,
            writer_version=snapshot.writer_version,
            features=snapshot.features,
            partitioned=bool(snapshot.partitions),
            mapping=self._mapping,
            rounded=snapshot.exists and may_be_rounded(self.table),
            alters=self._alters(lacking),
            columns=snapshot.schema if snapshot.exists else _columns_of(lacking),
            segments=lacking,
            rows=sum(segment.rows for segment in changes) + max((reach.rows for reach in reaches), default=0),
            bytes=sum(segment.size_bytes for segment in changes) + max((reach.bytes for reach in reaches), default=0),
        )

    def _alters(self, segments: tuple[Segment, ...]) -> bool:
        """Returns whether Spark must merge the table because its columns or properties change. Also returns True if the change is
        impossible: Spark's merge then reports the error.
        """
        given = [segment for segment in segments if not isinstance(segment, TruncateSegment)]
        if not self.table.snapshot.exists:
            return len({segment.columns for segment in given}) > 1 or any(map(self._needs_mapping, given))
        try:
            return any(self._statements(segment) for segment in given)
        except TableError:
            return True

    def _needs_mapping(self, segment: ChangesSegment | SchemaSegment) -> bool:
        return MAPPING_PROPERTY in self._properties(segment)

    def _wanted(self, segment: ChangesSegment | SchemaSegment) -> tuple[LakeColumn, ...]:
        return wanted_columns(segment.columns, soft_deletes=self.target.deletes == "soft" and bool(segment.key))

    def _properties(self, segment: ChangesSegment | SchemaSegment) -> dict[str, str]:
        return new_properties(self.target, self._wanted(segment), segment.key, self.writer.owner.to_text())

    def _statements(self, segment: ChangesSegment | SchemaSegment) -> list[str]:
        """Returns the statements with which Spark would add the columns of a segment to the table."""
        owner = self.writer.owner.to_text()
        return schema_statements(self.table, self.target, self._wanted(segment), segment.key, owner)

    def _make(self, segment: ChangesSegment | SchemaSegment) -> None:
        """Creates the table. Raises FolderTakenError if its folder has other files, and TableError if no Delta table can have these
        columns.
        """
        self._statements(segment)  # Raises TableError for columns that no table can have.
        if (
            not make_table(self.table.path, self._wanted(segment), self._properties(segment), check=_no_fence)
            and not self.table.refresh().exists
        ):
            raise FolderTakenError
        self.table.refresh()
        refuse_other_owner(self.table, self.writer, None)  # Another run may have created the table at the same moment.

    def _reach(self, segment: ChangesSegment) -> Reach:
        """Returns how many files, rows and bytes a merge of the segment may read. Returns zeros for a table without a key, whose images are
        only appended.
        """
        if not segment.key:
            return Reach()
        low, high = self._bounds(segment)
        return self.table.reach(segment.key[0], low, high)

    @property
    def _mapping(self) -> str:
        return self.table.snapshot.properties.get(MAPPING_PROPERTY, "none")

    def _bounds(self, segment: ChangesSegment) -> tuple[Any, Any]:
        """Returns the lowest and the highest value of the segment's first key column. Returns (None, None) if the table has column mapping,
        because its file statistics then have other column names.
        """
        if self._mapping != "none":
            return None, None
        low, high = ((bounds or (None,))[0] for bounds in (segment.key_min, segment.key_max))
        return low, high

    def apply(self, segment: Segment, applied_order_key: int) -> CommitCounts:
        """Creates the table if it does not exist, and commits the row changes of a segment. Other segments need no commit here, because
        Spark merges every table that is truncated or altered.
        """
        if not self.table.snapshot.exists and not isinstance(segment, TruncateSegment):
            self._make(segment)
        if not isinstance(segment, ChangesSegment):
            return CommitCounts()
        images = fold_arrow.staged_images(segment, self.storage_options)
        if not segment.key:
            rows = fold_arrow.fresh_images(images, applied_order_key)
            return self._append(self._rows(rows, segment, fold.LOG_NAMES), segment.last_order_key)
        scanned = self.table.scanned(segment.key[0], *self._bounds(segment))
        return self._merge(self._source(images, segment, applied_order_key), segment) + scanned

    def _source(self, images: pa.Table, segment: ChangesSegment, applied_order_key: int) -> pa.Table:
        """Returns the last image of each key, with all columns. Leaves out images that the table already has. Raises TableError if an image
        lacks columns and the lake does not have the row.
        """
        if not segment.partial:
            return fold_arrow.last_images(fold_arrow.fresh_images(images, applied_order_key), segment)
        try:
            soft = self.target.deletes == "soft"
            return fold_arrow.whole_images(images, segment, applied_order_key, self._lake(segment), soft=soft)
        except fold_arrow.UnknownRowError as error:
            raise TableError(self.table.name, f"{merge_sql.UNKNOWN_ROW}{error.order_key}") from error

    def _lake(self, segment: ChangesSegment) -> fold_arrow.Lake:
        """Returns the lake's rows that the segment's images may match. The columns have the segment's names."""
        there = self.table.snapshot.columns
        names = [column.name for column in segment.columns] + [ORDER_KEY]
        marks = [DELETED] if DELETED in there else []
        columns = [f"{_quoted(there[name.lower()][0])} AS {_quoted(name)}" for name in names] + marks
        bounds = self._bounds_text(segment)
        query = f"SELECT {', '.join(columns)} FROM {LAKE}{f' WHERE {bounds}' if bounds else ''}"
        found: pa.Table = pa.table(QueryBuilder().register(LAKE, self.table.log).execute(query).read_all())
        types = self._schema()
        # Casts the columns, because deltalake returns strings and bytes in Arrow's view types, from which Arrow cannot take values.
        rows = [found[name].cast(types.field(there[name.lower()][0]).type) for name in names]
        deleted = (
            np.asarray(pc.fill_null(found[DELETED], pa.scalar(False))) if marks else np.zeros(found.num_rows, np.bool_)
        )
        return fold_arrow.Lake(rows=pa.table(rows, names=names), deleted=deleted)

    def _merge(self, images: pa.Table, segment: ChangesSegment) -> CommitCounts:
        rows = self._rows(images, segment, fold.KEYED_NAMES)
        if not images.num_rows or self._all_new(segment):
            soft = self.target.deletes == "soft"
            kept = rows if soft else rows.filter(pa.array(~fold_arrow.removes(images)))
            return self._append(kept, segment.last_order_key)
        return self._merge_rows(rows, images[OPERATION], segment)

    def _all_new(self, segment: ChangesSegment) -> bool:
        """Returns whether file statistics prove that no file has a key of the segment. If the table has files, only an integer key allows
        this proof, because only integers have exact bounds in the statistics.
        """
        whole_numbers = {column.name for column in segment.columns if column.type in INTEGERS}
        known = segment.key[0] in whole_numbers or not self.table.reach(segment.key[0], None, None).files
        return known and self._reach(segment).files == 0

    def _rows(self, images: pa.Table, segment: ChangesSegment, operations: Mapping[int, str]) -> pa.Table:
        """Returns the images as rows with the table's columns and types. Columns that the source dropped are NULL. Other columns that the
        segment does not have are left out.
        """
        values: dict[str, Any] = {column.name.lower(): images[column.name] for column in segment.columns}
        values |= {name: images[name] for name in images.column_names if name in (ORDER_KEY, COMMIT_TIME)}
        values[OPERATION] = fold_arrow.operation_names(images, operations)
        soft = self.target.deletes == "soft"
        if soft and segment.key:
            values[DELETED] = pa.array(fold_arrow.removes(images))
        left = {name.lower() for name in alteration_steps.left_columns(segment, self.table, soft=soft)}
        fields = [field for field in self._schema() if field.name.lower() in values or field.name.lower() in left]
        columns = [_typed(values.get(field.name.lower()), field.type, images.num_rows) for field in fields]
        return pa.table(columns, schema=pa.schema(fields))

    def _schema(self) -> pa.Schema:
        return self.table.arrow_schema

    def _merge_rows(self, rows: pa.Table, operations: Any, segment: ChangesSegment) -> CommitCounts:
        """Merges rows into the table by key, with the conditions of Spark's MERGE (`merge_sql.whole_clauses`): inserts, updates and deletes
        rows, and leaves newer rows of the table unchanged. In the source of the MERGE, the columns get generated names, so deltalake needs
        to parse only the names of the table's columns.
        """
        values = {_quoted(name): f"{STAGED}.c{index}" for index, name in enumerate(rows.column_names)}
        source = rows.rename_columns([f"c{index}" for index in range(rows.num_columns)])
        source = source.append_column(ORDER_KEY, rows[ORDER_KEY]).append_column(OPERATION, operations)
        changes = {f"{LAKE}.{name}": value for name, value in values.items()}
        actual = {name.lower(): name for name in rows.column_names}
        keys = [_quoted(actual[name.lower()]) for name in segment.key]
        met = [f"{LAKE}.{name} = {values[name]}" for name in keys]
        bounds = self._bounds_text(segment)
        merge = self.table.log.merge(
            source,
            " AND ".join([*met, *([bounds] if bounds else [])]),
            source_alias=STAGED,
            target_alias=LAKE,
            writer_properties=writer_properties(self._schema()),
            commit_properties=self._commit_properties(segment.last_order_key),
            post_commithook_properties=NO_HOOKS,
        )
        if self.target.deletes == "soft":
            merge = merge.when_matched_update(changes, merge_sql.NEWER).when_not_matched_insert(values)
        else:
            gone = f"{merge_sql.NEWER} AND {merge_sql.REMOVES}"
            merge = merge.when_matched_delete(gone).when_matched_update(changes, merge_sql.NEWER)
            merge = merge.when_not_matched_insert(values, merge_sql.LEAVES)
        return self._committed(merge.execute) or self._append(rows.slice(0, 0), segment.last_order_key)

    def _bounds_text(self, segment: ChangesSegment) -> str:
        """Returns a condition with the segment's bounds of the first key column, by which deltalake skips files. Returns "" if this column
        is not an integer, or if the bounds are unknown.
        """
        low, high = self._bounds(segment)
        types = {column.name: column.type for column in segment.columns}
        if types[segment.key[0]] not in INTEGERS or low is None or high is None:
            return ""
        name = f"{LAKE}.{_quoted(self.table.snapshot.columns[segment.key[0].lower()][0])}"
        return f"{name} >= {int(low)} AND {name} <= {int(high)}"

    def _append(self, rows: pa.Table, order_key: int) -> CommitCounts:
        """Appends the rows in one commit. Commits even if there are no rows, because the commit's transaction stores `order_key`. Without
        this transaction, a later merge would treat changes up to `order_key` as new.
        """
        missing = [field for field in self._schema() if field.name not in rows.column_names]
        for field in missing:
            rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
        rows = rows.select(self._schema().names)
        properties = self._commit_properties(order_key)
        appended = append.Appended(app_id=self.app_id, order_key=order_key, user_metadata=self.user_metadata)

        def write() -> None:
            if append.can_append(self.table, rows):
                append.append(self.table, rows, appended)
                return
            write_deltalake(
                self.table.log,
                rows,
                mode="append",
                writer_properties=writer_properties(self._schema()),
                commit_properties=properties,
                post_commithook_properties=NO_HOOKS,
            )

        return self._committed(write) or CommitCounts()

    def _commit_properties(self, order_key: int) -> CommitProperties:
        return CommitProperties(
            custom_metadata={"userMetadata": self.user_metadata},
            max_commit_retries=0,
            app_transactions=[Transaction(self.app_id, order_key, int(time.time() * 1000))],
        )

    def _committed(self, write: Any) -> CommitCounts | None:
        """Calls `write` and returns the counts of its commit, or None if it made no commit. The fence is not checked, because a task cannot
        query the stores of the locks and of the ledger. Raises CommitFailedError if another program replaced the commit.
        """
        before = self.table.snapshot.version
        write()
        after = self.table.refresh().version
        if after == before:
            return None
        try:
            # Another program may replace the commit after it was made: Spark's log store checks whether a commit of this version exists,
            # and later writes its own commit. So this code looks up its commit in the log.
            counts = self.table.own_commit(before, self.user_metadata, self.app_id)
        except TableError as error:
            raise exceptions.CommitFailedError(error.reason) from error
        self._checkpoint(before, after)
        return counts

    def _checkpoint(self, before: int, after: int) -> None:
        """Makes a checkpoint as often as Spark would. After a checkpoint, removes log files that are no longer needed, as Spark does."""
        interval = int(self.table.snapshot.properties.get(CHECKPOINT_PROPERTY, CHECKPOINT_COMMITS))
        if before // interval < after // interval:
            before_checkpoint(self.table.path)
            self.table.log.create_checkpoint()
            if self.table.snapshot.properties.get(CLEANING_PROPERTY, "true") == "true":
                self.table.log.cleanup_metadata()


def _no_fence() -> None:
    """Does nothing. `make_table` calls this function instead of the check of a fence, because a task has no fence. To create a table, no
    check is needed: the table is empty and has no transaction, so no data changes.
    """


NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


def _columns_of(segments: tuple[Segment, ...]) -> tuple[tuple[str, str], ...]:
    """Returns the name and type of each column of the source table, for a new Delta table. Returns () if all segments are TRUNCATE."""
    given = (segment.columns for segment in segments if not isinstance(segment, TruncateSegment))
    return tuple((column.name, column.type) for column in next(given, ()))


def _typed(values: Any, type_: Any, count: int) -> Any:
    return pa.nulls(count, type_) if values is None else values.cast(type_)


def _quoted(name: str) -> str:
    return f'"{name}"'
