"""Publishes a snapshot: one Delta commit creates the table from the rows that were read and the buffered changes. A Dagster run calls this
module.

The caller holds the run lock, and has checked that the stream has passed the position at which the last row was read. A run may be killed
after this commit and before it records the commit. A repeated publication finds the commit, or creates the table again with at least the
same changes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from sluice.object_stores.errors import StoreError
from sluice.spark_jobs.durable_lake import sync_commits, sync_names
from sluice.spark_jobs.errors import SparkJobError, SparkUnavailableError, TableError
from sluice.spark_jobs.fence import Fence
from sluice.spark_jobs.merging.fold import parquet_view
from sluice.spark_jobs.session import LakeSession, SparkSettings, first_line, is_away
from sluice.spark_jobs.side_tables import change_log
from sluice.spark_jobs.side_tables.alone import kinds_of
from sluice.spark_jobs.side_tables.history import KIND as HISTORY
from sluice.spark_jobs.side_tables.history import History
from sluice.spark_jobs.side_tables.history_fix import announce, settle
from sluice.spark_jobs.side_tables.side_table import SideTable, side_app_id_of
from sluice.spark_jobs.snapshot import publish_shard, publish_sql, whole_files
from sluice.spark_jobs.snapshot.apply_cascades import apply_cascades
from sluice.spark_jobs.snapshot.publication import (
    ColumnsDifferError,
    Publication,
    PublishedSnapshot,
    check_columns,
    is_partial,
)
from sluice.spark_jobs.snapshot.spark_on_demand import SparkOnDemand
from sluice.spark_jobs.sql_text import delta_path
from sluice.spark_jobs.staged_batch import app_id_of
from sluice.spark_jobs.table_locks import NO_TABLE_LOCKS, TableLocks, Writing
from sluice.spark_jobs.table_owner import NO_RECORDS, TableRecord, TableRecords, refuse_others
from sluice.spark_jobs.tables.alterations import LOCAL_TIMES
from sluice.spark_jobs.tables.commit_record import is_same_publication
from sluice.spark_jobs.tables.delta_table import (
    MAPPING_PROPERTY,
    DeltaSnapshot,
    DeltaTable,
    new_properties,
    pairs,
    wanted_columns,
)
from sluice.spark_jobs.tables.new_table import ENGINE_INFO
from sluice.spark_jobs.tables.renamed_table import carried_properties, is_mapped
from sluice.spark_jobs.targets import layout

AGAIN = (
    "the stream is being read again and has not reached the position of the table in the lake yet; Sluice tries again"
)
RESUME = "sluice snapshot resume"
AS_READ = "the Parquet files that the snapshot wrote were added to the table as they are, without Spark"
BEFORE = "an earlier run made the commit, and ended before it recorded the commit"
# This table property has the id of the snapshot from which the table was created.
SNAPSHOT_PROPERTY = "sluice.snapshot"


def publish_snapshot(
    given: Publication,
    spark: SparkSettings | SparkOnDemand,
    *,
    fence: Fence,
    storage_options: Mapping[str, str] | None = None,
    records: TableRecords = NO_RECORDS,
    table_locks: TableLocks = NO_TABLE_LOCKS,
) -> PublishedSnapshot:
    """Publishes a snapshot under the table lock. If `spark` is a SparkOnDemand, the caller releases its session. `fence` is the fence of
    the run, which holds the run lock.

    Raises SparkUnavailableError, TableError or ColumnsDifferError, each with a message for users.
    """
    with contextlib.ExitStack() as stack:
        if isinstance(spark, SparkSettings):
            spark = SparkOnDemand(spark)
            stack.callback(spark.release)
        try:
            spark.begin(fence)
            target = given.target
            sessions = [spark.session] if target.shared else []
            writing = Writing.of(table_locks.who, spark.settings, sessions)
            with table_locks.at(given.owner.table, target.path, writing, fence, shared=target.shared):
                return publish(spark, given, storage_options or {}, records)
        except Exception as error:
            # After an error, this session may be lost, or may keep the settings of the failed statement. So the next publication gets
            # another session.
            spark.release()
            if isinstance(error, SparkJobError | ColumnsDifferError):
                raise
            raise _translated(given.owner.table, error) from error


def _translated(table: str, error: Exception) -> SparkJobError:
    """Converts an unexpected error of a publication to an error with a message for users."""
    if isinstance(error, StoreError):
        why = f"the store with the rows and buffered changes of the snapshot cannot be used now: {error}; Sluice tries again"
        return TableError(table, why, own=False)
    line = first_line(error)
    if is_away(error):
        return SparkUnavailableError(
            f"the connection to Spark was lost while {table} was published ({line}); Sluice tries again"
        )
    return TableError(table, f"{_failed_in(error)}: {line}")


def _failed_in(error: Exception) -> str:
    """Returns what failed, for a message: Spark's publication, or the type of an error that does not come from Spark."""
    by_spark = type(error).__module__.startswith(("pyspark", "py4j"))
    return (
        "Spark could not publish the rows of the snapshot"
        if by_spark
        else f"the rows of the snapshot could not be published ({type(error).__name__})"
    )


def publish(
    spark: SparkOnDemand,
    given: Publication,
    storage_options: Mapping[str, str],
    records: TableRecords = NO_RECORDS,
) -> PublishedSnapshot:
    """Publishes a snapshot. Uses Spark only if necessary. The caller holds the table lock. Raises TableError, for example if the table has
    another owner. Also raises ColumnsDifferError and the exceptions of Spark.
    """
    started = time.monotonic()
    check_columns(given)
    if (rows := given.chunks.rows()) != given.rows:
        raise ColumnsDifferError(
            f"the files of the chunks have {rows} rows instead of the {given.rows} rows that were read"
        )
    label = given.label()
    apply_cascades(given, label, spark.fence)
    if not given.target.current_state:
        return _publish_alone(spark, given, label, storage_options, records)
    table = DeltaTable(
        given.owner.table, given.target.path, app_id_of(given.owner), storage_options, given.target.shard
    )
    before = table.refresh()
    if not before.exists:
        given.target.refuse_clash(given.owner.table, RESUME)
    refuse_others(given.owner, table.found(None, given.owner.to_text()))
    if label < before.applied_order_key:
        raise TableError(given.owner.table, AGAIN, own=False)
    history = _history(spark.fence, given, storage_options)
    # Announces the write of the table in the history. If the snapshot is canceled after the table's commit, nobody updates the history.
    # Because of the announcement, the next batch then compares the history with the table.
    if history is not None:
        announce(history, given.record(label))
    made = _made(spark, given, table, label, storage_options)
    after = table.snapshot
    try:
        if made.lacks_only_names:
            sync_names(given.target.path, after.version)
        else:
            # If an earlier run made the commit, that run may have been killed before it synced the commit.
            sync_commits(given.target.path, made.since, after.version, since_seconds=given.read_at_us / 1e6)
    except OSError as error:
        why = f"a commit to {given.target.path} could not be synced to disk: {error}; Sluice tries again"
        raise TableError(given.owner.table, why) from error
    _append_read_row(spark.fence, given, label, storage_options, records)
    if history is not None:
        _update_history(spark, given, table, label, history, records)
    records.keep(given.owner.table, TableRecord(table_id=after.table_id, version=after.version))
    counts, size = table.last_commit(), table.size
    return PublishedSnapshot(
        rows=counts.rows_inserted,
        label=label,
        delta_version=after.version,
        files=counts.files_added,
        seconds=time.monotonic() - started,
        columns=after.schema,
        table_rows=size.rows if size else None,
        table_bytes=size.bytes if size else None,
        way=made.way,
        reason=made.reason,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Made:
    """How the published table was made. The commits of the publication follow the version `since`. `way` is "spark" if Spark wrote
    the rows, and "files" if the snapshot's Parquet files became the table's files. `reason` says why. If `lacks_only_names`, everything is
    synced except the directory entries of the table's folder and of the folders above it.
    """

    since: int
    way: Literal["spark", "files"]
    reason: str
    lacks_only_names: bool = False


def _made(
    spark: SparkOnDemand, given: Publication, table: DeltaTable, label: int, storage_options: Mapping[str, str]
) -> _Made:
    """Makes the commit of the publication, and refreshes `table`. Makes no commit if the newest commit is already the commit of this
    publication, because a run made it and was killed afterwards. Raises LostCommitError if another program replaced the commit.
    """
    before = table.snapshot
    if before.exists and given.target.shard is None:
        newest = table.commits_after(before.version - 1)[0]
        if is_same_publication(newest, given.record(label)):
            way: Literal["spark", "files"] = "files" if newest.get("engineInfo") == ENGINE_INFO else "spark"
            return _Made(since=before.version - 1, way=way, reason=BEFORE)
    why = whole_files.why_not(given, before, spark.defaults_of_tables)
    why = why or whole_files.why_no_commit(given, storage_options)
    there = before
    free = before.exists or whole_files.clear(given, spark.fence, storage_options)
    properties = _properties(given, before)
    if not why and not (free and whole_files.make_of_files(given, label, properties, spark.fence, storage_options)):
        why = "the path of the table is not empty"
    if why:
        if given.target.shard is not None:
            # The next commit adds the shard's columns. This commit gets the metadata of the publication, and no transaction version: with
            # one, Delta would take the later commit of the rows for a repetition and skip it.
            spark.session.commit_without_version(given.record(label))
            there = publish_shard.give_columns(spark.session, given, table)
        _make_by_spark(spark.session, given, there, label)
    table.refresh()
    table.own_commit(there.version, given.record(label), _txn_id(given, there, label), label)
    return _Made(since=before.version, way="spark" if why else "files", reason=why or AS_READ, lacks_only_names=not why)


def _make_by_spark(session: LakeSession, given: Publication, before: DeltaSnapshot, label: int) -> None:
    """Lets Spark read all rows. Spark writes them as the new table, or replaces the rows of the existing table or of the shard."""
    session.expect(given.rows + given.changes.rows())
    partial = _show(session, given)
    session.commit_as(_txn_id(given, before, label), label, given.record(label))
    rows = _rows(given, partial=partial)
    of_shard = given.target.shard is not None
    statement = publish_shard.statement(given, before, rows) if of_shard else _statement(given, before, rows)
    session.commit(given.owner.table, statement)


def _txn_id(given: Publication, before: DeltaSnapshot, label: int) -> str:
    """Returns the app id of the commit's transaction. Usually it is the table's app id. If the table already has the order key `label` or a
    later one under this app id, Delta would drop the commit, so the snapshot's id and the name of the chunks' folder are appended to the
    app id. In both cases Delta drops a repeated commit of the same publication.
    """
    app_id = app_id_of(given.owner)
    return app_id if label > before.applied_order_key else f"{app_id}#{given.snapshot_id}/{given.chunks.folder.name}"


def _properties(given: Publication, before: DeltaSnapshot) -> dict[str, str]:
    wanted = wanted_columns(given.columns, soft_deletes=given.soft_deletes)
    return {
        **carried_properties(before),
        **new_properties(given.target, wanted, given.key, given.owner.to_text()),
        SNAPSHOT_PROPERTY: given.snapshot_id,
        **({MAPPING_PROPERTY: "name"} if is_mapped(before) else {}),
    }


def _show(session: LakeSession, given: Publication) -> bool:
    """Creates temporary views in Spark of the rows that were read and of the buffered changes. Returns whether any image may lack columns.
    Raises ColumnsDifferError if a value of a row is unknown (`_check_completed`).
    """
    chunks, changes = session.uploaded.url_of(given.chunks), session.uploaded.url_of(given.changes)
    session.sql(parquet_view(publish_sql.CHUNKS_VIEW, chunks, publish_sql.chunk_types(given.columns)))
    partial = is_partial(given)
    types = publish_sql.change_types(given.columns, partial=partial)
    session.sql(parquet_view(publish_sql.CHANGES_VIEW, changes, types))
    if partial:
        _check_completed(session, given)
    return partial


def _publish_alone(
    spark: SparkOnDemand, given: Publication, label: int, storage_options: Mapping[str, str], records: TableRecords
) -> PublishedSnapshot:
    """Publishes a table without a current-state table. Appends the rows that were read to its change log. Makes the open versions of its
    history, which are the versions that are valid now, equal to these rows with the buffered changes.
    """
    started, owner, position, record = time.monotonic(), given.owner, (label, given.read_at_us), given.record(label)
    found = list[SideTable]()
    for kind, path in kinds_of(given.target):
        began, app_id = time.time(), side_app_id_of(owner.destination, owner.ledger_id, kind, owner.table)
        side = SideTable(owner.table, path, app_id, storage_options, fence=spark.fence).open()
        if side.log is None:
            given.target.refuse_clash(owner.table, RESUME)
        if label < side.applied:
            raise TableError(owner.table, AGAIN, own=False)
        if kind == HISTORY and given.key:
            session = spark.session
            session.expect(given.rows + given.changes.rows())
            history = History(
                table=side, folder=_scratch(given), session=session, by_spark=given.target.merge == "spark"
            )
            # If a row that was read differs from its open version, the new version begins at `label`, the position at which the difference
            # was found.
            rows = dataclasses.replace(_rows(given, partial=_show(session, given)), label=label)
            selection = publish_sql.selection(rows)
            history.take_read(
                selection, (given.columns, given.chunks.schema(given.chunks.names()[0])), given.key, position, record
            )
        elif kind == change_log.KIND:
            aside = side.aside(f"{change_log.READ}/{given.snapshot_id}/{given.chunks.folder.name}")
            details = {"snapshot": given.snapshot_id, "rows": given.rows, "after": side.applied}
            since = given.since if given.key else given.order_key
            change_log.append_read(
                aside,
                given.chunks,
                given.columns,
                since=since,
                position=position,
                details=details,
                user_metadata=record,
            )
        if side.open().log is not None:
            side.keep_on_disk(began)
            records.keep_side_table(owner.table, kind, side.record)
            found.append(side)
    records.forget_current_state_table(owner.table)
    return PublishedSnapshot(
        rows=given.rows,
        label=label,
        delta_version=found[0].version if found else -1,
        files=0,
        seconds=time.monotonic() - started,
        columns=tuple(found[0].columns.items()) if found and given.target.history else (),
    )


def _append_read_row(
    fence: Fence, given: Publication, label: int, storage_options: Mapping[str, str], records: TableRecords = NO_RECORDS
) -> None:
    """Appends a row about the snapshot to the change log. The log may lack changes from before the snapshot, for example changes that
    arrived while the table was stopped. The row marks this gap. Does nothing if the log does not exist yet.
    """
    if not given.target.change_log:
        return
    began, owner = time.time(), given.owner
    app_id = side_app_id_of(owner.destination, owner.ledger_id, change_log.KIND, owner.table)
    side = SideTable(owner.table, given.target.change_log, app_id, storage_options, fence=fence).open()
    if side.log is None:
        return
    details = {"snapshot": given.snapshot_id, "rows": given.rows, "after": side.applied}
    position = (label, given.read_at_us)
    change_log.append_event(side.aside(change_log.READ), change_log.READ, position, details, given.record(label))
    side.open().keep_on_disk(began)
    records.keep_side_table(owner.table, change_log.KIND, side.record)


def _history(fence: Fence, given: Publication, storage_options: Mapping[str, str]) -> SideTable | None:
    """Opens the table's history, which may not exist yet. Returns None if conf/ configures no history, or if the table has no key."""
    if not given.target.history or not given.key:
        return None
    owner = given.owner
    app_id = side_app_id_of(owner.destination, owner.ledger_id, HISTORY, owner.table)
    side = SideTable(owner.table, given.target.history, app_id, storage_options, fence=fence).open()
    if side.log is None:
        given.target.refuse_clash(owner.table, RESUME)
    return side


def _update_history(  # noqa: PLR0917  one caller
    spark: SparkOnDemand, given: Publication, table: DeltaTable, label: int, side: SideTable, records: TableRecords
) -> None:
    """Updates the history from the published table: opens versions for rows that differ from the history, and closes versions of rows that
    the table no longer has.
    """
    began, position, record = time.time(), (label, given.read_at_us), given.record(label)
    history = History(table=side, folder=_scratch(given), session=spark.session, by_spark=given.target.merge == "spark")
    history.take(table, table.snapshot.version, given.key, position, record)
    settle(side, record)
    if side.log is not None:
        side.keep_on_disk(began)
        records.keep_side_table(given.owner.table, HISTORY, side.record)


def _rows(given: Publication, *, partial: bool) -> publish_sql.Rows:
    return publish_sql.Rows(
        columns=given.columns,
        key=given.key,
        label=given.rows_key,
        read_at_us=given.read_at_us,
        buffered_after=given.order_key if not given.key else -1,
        changes=bool(given.changes.names()),
        soft_deletes=given.soft_deletes,
        partial=partial,
    )


def _statement(given: Publication, before: DeltaSnapshot, rows: publish_sql.Rows) -> str:
    wanted = wanted_columns(given.columns, soft_deletes=rows.soft_deletes)
    times = LOCAL_TIMES if any(column.type == "timestamp_ntz" for column in wanted) else {}
    properties = {**_properties(given, before), **times}
    laid = layout.clause(given.owner.table, given.target.layout, wanted, before.partitions, before.features)
    return (
        f"CREATE OR REPLACE TABLE {delta_path(given.target.path)} USING delta{laid} "
        f"TBLPROPERTIES ({pairs(properties)}) AS {publish_sql.selection(rows)}"
    )


def _check_completed(session: LakeSession, given: Publication) -> None:
    """Raises ColumnsDifferError if the value of a column is unknown for a row: the row's images lack the column, and the snapshot did not
    read the row. All rows must then be read again.

    A row that was inserted during the snapshot counts as not read, because the row that the snapshot read may be an earlier row with the
    same key.
    """
    query = publish_sql.incomplete(_rows(given, partial=True))
    count = int(session.spark.sql(query).collect()[0][0])
    if count:
        raise ColumnsDifferError(
            f"{count} rows were inserted or updated during the snapshot, and their row images lack columns whose values are unknown"
        )


def _scratch(given: Publication) -> Path:
    """Creates the folder for files that Spark merges into a history. Returns the folder."""
    folder = given.chunks.folder.parent
    folder.mkdir(parents=True, exist_ok=True)
    return folder
