"""Rewrites files of Delta tables if this is worthwhile, and deletes files that are no longer needed. The caller is a run that holds the
run lock, so no merge of Sluice conflicts with it.

If another program commits at the same time, the OPTIMIZE or VACUUM may fail, and the next maintenance repeats it. A crash leaves nothing to
undo: a commit is complete or absent, and the next VACUUM deletes files that no commit names.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import math
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError, TableNotFoundError

from sluice.consistent_snapshot.find import newest_row
from sluice.spark_jobs import sql_text
from sluice.spark_jobs.consistent_snapshots import NAME as CONSISTENT_SNAPSHOTS
from sluice.spark_jobs.durable_lake import sync_commits
from sluice.spark_jobs.errors import SparkUnavailableError, TableError, unreadable_log
from sluice.spark_jobs.fence import READ_ONLY, Fence
from sluice.spark_jobs.maintain.rule import (
    DELETED_SHARE_MAX,
    FILE_BYTES,
    SMALL_BYTES,
    FileFacts,
    MaintenanceAct,
    depth_of,
    due,
    hours_of,
    log_hours,
)
from sluice.spark_jobs.session import LakeSession, SparkSettings, first_line, is_away, open_sessions
from sluice.spark_jobs.staged_batch import COMMIT_TIME, OPERATION, ORDER_KEY, app_id_of
from sluice.spark_jobs.table_locks import NO_TABLE_LOCKS, TableLocks, Writing
from sluice.spark_jobs.table_owner import (
    NO_RECORDS,
    Owner,
    TableRecord,
    TableRecords,
    behind_our_back,
    may_lack_columns,
)
from sluice.spark_jobs.tables.commit_record import maintenance_record
from sluice.spark_jobs.tables.delta_table import VECTORS_PROPERTY, DeltaTable, physical_names, set_properties
from sluice.spark_jobs.tables.exact_bounds import (
    CLUSTERING,
    EXACT_PROPERTY,
    REWRITE_SETTINGS,
    may_be_rounded,
    rewrite_statement,
    rounded_files,
)

# Table property: the time (ms since 1970) of the newest file after the last CLUSTER (rewrite in key order). `_fresh` counts newer files.
CLUSTERED_PROPERTY = "sluice.clusteredUpTo"
RETENTION_PROPERTY, LOG_PROPERTY = "delta.deletedFileRetentionDuration", "delta.logRetentionDuration"
OPTIMIZE_SETTINGS = {
    "spark.databricks.delta.optimize.minFileSize": str(SMALL_BYTES),
    "spark.databricks.delta.optimize.maxFileSize": str(FILE_BYTES),
}
VACUUM = "vacuum"
VACUUM_SETTINGS = {
    # Disables Delta's check, which refuses a short retention, because `rule.hours_kept` has Sluice's own limit.
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    # By default Delta writes no commits for a VACUUM in S3. `_removed` needs these commits, because they have the number of deleted files.
    "spark.databricks.delta.vacuum.logging.enabled": "true",
    # VACUUM lists a table's files with this many tasks. Delta's default of 10 000 tasks would take a minute of CPU time.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaintainedTable:
    """A table to maintain. `key` is its first key column, or empty. `columns`: the captured columns, and the mark of soft deletes. If
    `shared`, other destinations also write the table, each with the table lock (`table_locks`). `fence` is the fence of the run.
    """

    owner: Owner
    path: str
    key: str = ""
    columns: tuple[str, ...] = ()
    storage_options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    records: TableRecords = NO_RECORDS
    run: str = ""
    shared: bool = False
    table_locks: TableLocks = NO_TABLE_LOCKS
    fence: Fence = READ_ONLY

    @property
    def name(self) -> str:
        return self.owner.table

    def locked(self, spark: SparkSettings, session: LakeSession) -> AbstractContextManager[bool]:
        """Returns a context that holds the table lock while it is open, if the table is `shared`. The context yields True. It raises
        TableError if another run holds the lock for all of `table_locks.wait_seconds`, or if the lock is lost while the context is open.
        """
        writing = Writing.of(self.table_locks.who, spark, [session])
        return self.table_locks.at(self.name, self.path, writing, self.fence, shared=self.shared)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Maintained:
    """What maintenance did to one table, or what it would do (`looked_at`). `act` is a MaintenanceAct or VACUUM. `before` and `after` are
    the statistics of the files before and after the maintenance, and `version` is the table's version afterwards. `removed_files` and
    `removed_bytes` count what VACUUM deleted.
    """

    name: str
    act: str
    reason: str
    before: FileFacts
    after: FileFacts
    version: int = -1
    removed_files: int = 0
    removed_bytes: int = 0
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def facts_of(table: MaintainedTable) -> FileFacts | None:
    """Returns statistics of the table's files from its log, or None if the table does not exist. Raises TableError if the log cannot be
    read.
    """
    try:
        log = deltalake.DeltaTable(table.path, storage_options=dict(table.storage_options) or None)
        files: Any = pa.table(log.get_add_actions(flatten=True))
        rounded = rounded_files(table.name, log, table.path, table.storage_options)
        names = physical_names(log)
        marked = _marked(log) if log.metadata().configuration.get(VECTORS_PROPERTY) == "true" else {}
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise TableError(table.name, unreadable_log(table.path, error)) from error
    is_large = pc.greater_equal(files["size_bytes"], pa.scalar(SMALL_BYTES, pa.int64()))
    large = files.filter(is_large)
    parts = [name for name in files.column_names if name.startswith("partition.")]
    return FileFacts(
        files=files.num_rows,
        small_files=_joinable(files.filter(pc.invert(is_large)), parts),
        rows=int(pc.sum(files["num_records"]).as_py() or 0),
        bytes=int(pc.sum(files["size_bytes"]).as_py() or 0),
        deleted=sum(marked.values()),
        compact_bytes=_compact_bytes(files, is_large, marked),
        large_files=large.num_rows,
        fresh_files=_fresh(large, log.metadata().configuration.get(CLUSTERED_PROPERTY, "")),
        # The files of a partitioned table are never ordered by key.
        depth=0.0 if parts else _depth(large, names.get(table.key.lower(), table.key)),
        rounded_files=len(rounded),
        version=log.version(),
    )


def _marked(log: Any) -> dict[str, int]:
    """Returns the number of rows that a deletion vector deletes, by file name, for all files that have one."""
    marked: dict[str, int] = {}
    for batch in pa.RecordBatchReader.from_stream(log.deletion_vectors()):
        for path, kept in zip(batch.column("filepath"), batch.column("selection_vector"), strict=True):
            rows: Any = kept.values
            marked[_short(path.as_py())] = len(rows) - int(pc.sum(rows).as_py() or 0)
    return marked


def _short(path: str) -> str:
    """Returns a file's name without its folder. The name is unique, and is the same in a path and in a URL."""
    return path.rpartition("/")[2]


def _compact_bytes(files: Any, is_large: Any, marked: Mapping[str, int]) -> int:
    """Returns how many bytes OPTIMIZE would rewrite if it does not order rows by key."""
    counts = [marked.get(_short(path), 0) for path in files["path"].to_pylist()]
    bound: Any = pc.multiply(pc.cast(files["num_records"], pa.float64()), pa.scalar(DELETED_SHARE_MAX))
    worn: Any = pc.fill_null(pc.greater(pa.array(counts, pa.float64()), bound), pa.scalar(value=False))
    return int(pc.sum(files.filter(pc.or_(pc.invert(is_large), worn))["size_bytes"]).as_py() or 0)


def _joinable(small: Any, parts: list[str]) -> int:
    """Returns how many small files can be joined with another small file. Files of different partitions cannot be joined."""
    if not parts:
        return int(small.num_rows)
    counts = pc.cast(small.group_by(parts).aggregate([([], "count_all")])["count_all"], pa.int64())
    return int(pc.sum(counts.filter(pc.greater(counts, pa.scalar(1, pa.int64())))).as_py() or 0)


def _fresh(files: Any, clustered_up_to: str) -> int:
    """Returns how many of the files were written after the last CLUSTER. Returns the number of all files if no CLUSTER was recorded
    (`clustered_up_to` is empty).
    """
    limit = int(clustered_up_to) if clustered_up_to.isdigit() else -1
    return int(pc.sum(pc.greater(files["modification_time"], pa.scalar(limit, pa.int64()))).as_py() or 0)


def _depth(files: Any, key: str) -> float:
    lows, highs = f"min.{key}", f"max.{key}"
    if not key or not {lows, highs} <= set(files.column_names) or files[lows].null_count or files[highs].null_count:
        return 0.0
    return depth_of(files[lows].to_pylist(), files[highs].to_pylist())


def looked_at(table: MaintainedTable, *, wanted: bool = False) -> Maintained | None:
    """Returns what `optimize` would do, or None if the table does not exist. Reads only the table's log. Raises TableError if the log
    cannot be read.
    """
    facts = facts_of(table)
    if facts is None:
        return None
    act, reason = due(facts, wanted=wanted)
    return Maintained(name=table.name, act=act, reason=reason, before=facts, after=facts, version=facts.version)


def lags(table: MaintainedTable, facts: FileFacts) -> bool:
    """Returns whether the table is at a later version than the one that the last run recorded. The cause is a person's maintenance, or a
    run that was killed after its commit and before it stored the record.
    """
    record = table.records.get(table.name)
    return record is not None and record.version < facts.version


def catch_up(table: MaintainedTable) -> None:
    """Stores the table's current version in the table's record, if the record has an older version (`lags`). Without this, each consistent
    snapshot would name the older version, whose files VACUUM deletes. The caller holds the run lock.

    Raises TableError if another program replaced or restored the table.
    """
    delta = _ours(table)
    if (record := table.records.get(table.name)) is not None and delta.snapshot.version > record.version:
        _keep(table, delta, record.version)


def optimize(spark: SparkSettings, table: MaintainedTable, *, wanted: bool = False) -> Maintained | None:
    """Rewrites files of the table if there are too many small files or deleted rows, or if large files are not ordered by key (`rule.due`).
    `wanted` is true if an operator requested the rewrite. Returns what was done, or None if the table does not exist. Raises TableError if
    Spark refuses a statement, or if another program replaced or restored the table. Raises SparkUnavailableError if Spark does not answer.
    """
    began, plan = time.monotonic(), looked_at(table, wanted=wanted)
    if plan is None or plan.act == MaintenanceAct.NOTHING:
        return plan
    delta = _ours(table)
    record = _record(table)
    whole = plan.before.rounded_files or (
        plan.act == MaintenanceAct.CLUSTER and CLUSTERING not in delta.snapshot.features
    )
    # In a table with Delta's clustering, this statement also orders the rows.
    plain = f"OPTIMIZE {sql_text.delta_path(table.path)}"
    with open_sessions(spark, 1, table.fence) as (session,), table.locked(spark, session):
        session.configure({**OPTIMIZE_SETTINGS, **REWRITE_SETTINGS})
        session.expect(plan.before.rows)
        session.commit_without_version(record)
        rewritten = _run(session, table, rewrite_statement(delta, table.key) if whole else plain, _rewritten)
        # A run that crashes here has not stored when CLUSTER was done. The next maintenance then rewrites the files again.
        if plan.act == MaintenanceAct.CLUSTER:
            checked = {EXACT_PROPERTY: "true"} if may_be_rounded(delta) else {}
            _run(session, table, set_properties(table.path, {CLUSTERED_PROPERTY: _newest_ms(table), **checked}))
    if not rewritten and plan.act == MaintenanceAct.COMPACT:
        return _without_effect(table, plan, began)
    return _done(table, delta, plan, began, record)


def _rewritten(result: Any) -> int:
    """Returns how many files an OPTIMIZE added and removed. Delta makes no commit if there are none."""
    (counts,) = result.select("metrics.numFilesAdded", "metrics.numFilesRemoved").collect()
    return sum(counts)


def _without_effect(table: MaintainedTable, plan: Maintained, began: float) -> Maintained:
    """Returns the result of an OPTIMIZE that found no file to rewrite, for example because another program had rewritten the files since
    `plan`. The table's record stays, so that the next maintenance checks the commits of that program (`catch_up`).
    """
    facts = facts_of(table) or plan.before
    return dataclasses.replace(
        plan,
        act=MaintenanceAct.NOTHING,
        reason=f"{plan.reason}, but OPTIMIZE found no file to rewrite",
        after=facts,
        version=facts.version,
        seconds=round(time.monotonic() - began, 3),
    )


def _newest_ms(table: MaintainedTable) -> str:
    try:
        log = deltalake.DeltaTable(table.path, storage_options=dict(table.storage_options) or None)
        files: Any = pa.table(log.get_add_actions(flatten=True))
    except (DeltaError, OSError) as error:
        raise TableError(table.name, unreadable_log(table.path, error)) from error
    return str(pc.max(files["modification_time"]).as_py() or 0)


def logged_hours(table: MaintainedTable) -> float | None:
    """Returns for how many hours the table's log names files that left the table, or None if the table does not exist. Raises TableError
    if the log cannot be read.
    """
    try:
        log = deltalake.DeltaTable(table.path, storage_options=dict(table.storage_options) or None)
        return hours_of(log.metadata().configuration.get(RETENTION_PROPERTY, ""))
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise TableError(table.name, unreadable_log(table.path, error)) from error


def vacuum(
    spark: SparkSettings, table: MaintainedTable, hours: float, *, logged: float, log_days: int
) -> Maintained | None:
    """Deletes files that left the table more than `hours` ago, and sets for how many days Delta keeps the table's log (`log_days`). Returns
    None if the table does not exist. Raises TableError if Spark refuses a statement, or if another program replaced or restored the table.
    Raises SparkUnavailableError if Spark does not answer.

    The log keeps the names of removed files for at least `logged` hours, even if a user requests fewer `hours` for one VACUUM. VACUUM also
    deletes every file that the log does not name. If the log named removed files for fewer hours, a later VACUUM would delete files that
    consistent snapshots still need.
    """
    began, before = time.monotonic(), facts_of(table)
    if before is None:
        return None
    delta = _ours(table)
    kept = math.ceil(max(hours, logged))
    wanted = {RETENTION_PROPERTY: f"interval {kept} hours", LOG_PROPERTY: f"interval {log_hours(log_days, kept)} hours"}
    properties = {name: value for name, value in wanted.items() if delta.snapshot.properties.get(name) != value}
    with open_sessions(spark, 1, table.fence) as (session,), table.locked(spark, session):
        session.configure(VACUUM_SETTINGS)
        # VACUUM returns one row per file. Without this hint Spark would use hundreds of tasks for few rows, which takes minutes.
        session.expect(before.files)
        session.commit_without_version(_record(table))
        if properties:
            _run(session, table, set_properties(table.path, properties))
        _run(session, table, f"VACUUM {sql_text.delta_path(table.path)} RETAIN {math.ceil(hours)} HOURS")
    reason = f"files that left the table more than {hours:g} hours ago"
    plan = Maintained(name=table.name, act=VACUUM, reason=reason, before=before, after=before)
    made = _done(table, delta, plan, began, _record(table))
    return dataclasses.replace(made, **_removed(delta))


def _ours(table: MaintainedTable) -> DeltaTable:
    """Opens the table. Raises TableError if it is missing, or if another program replaced or restored it since the last run."""
    delta = DeltaTable(table.name, table.path, app_id_of(table.owner), table.storage_options)
    delta.refresh()
    record = table.records.get(table.name)
    if record is not None and (why := behind_our_back(table.owner, record, delta.found(record))):
        raise TableError(table.name, why, own=False)
    return delta


def _run(session: LakeSession, table: MaintainedTable, statement: str, read: Callable[[Any], int] = lambda _: 0) -> int:
    """Executes a statement, and returns what `read` finds in its result. Raises SparkUnavailableError if the connection to Spark is lost,
    and TableError after any other failure.
    """
    try:
        return read(session.commit(table.name, statement))
    except TableError:  # The fence raised this error, so Spark is not the cause.
        raise
    except Exception as error:
        if is_away(error):
            why = (
                f"the connection to Spark was lost during the maintenance of {table.name} "
                f"({first_line(error)}); the next maintenance run tries again"
            )
            raise SparkUnavailableError(why) from error
        why = f"Spark could not maintain the table: {first_line(error)}; the next maintenance run tries again"
        raise TableError(table.name, why, own=False) from error


def _done(table: MaintainedTable, delta: DeltaTable, made: Maintained, began: float, record: str) -> Maintained:
    """Syncs the commits to disk, stores the table's id and version in its TableRecord, and returns the result. `record` is the metadata by
    which these commits are recognized as Sluice's.
    """
    version = delta.snapshot.version
    after = delta.refresh()
    delta.own_commit(version, record)
    if after.version > version:
        _keep(table, delta, version)
    facts = facts_of(table) or made.before
    return dataclasses.replace(made, after=facts, version=after.version, seconds=round(time.monotonic() - began, 3))


def _keep(table: MaintainedTable, delta: DeltaTable, since: int) -> None:
    """Syncs the commits after the version `since` to disk, then stores the table's record. If another program has removed a column that the
    source still has, keeps the older record, so that the next merge notices the removal. Raises TableError if the sync fails.
    """
    now, before = delta.snapshot, table.records.get(table.name)
    try:
        sync_commits(table.path, since, now.version)
    except OSError as error:
        why = f"a commit to {table.path} could not be synced to disk: {error}; check the disk of the lake"
        raise TableError(table.name, why) from error
    needed = {name.lower() for name in (*table.columns, ORDER_KEY, COMMIT_TIME, OPERATION)}
    if before is None or not may_lack_columns(before, delta.found(before), needed):
        table.records.keep(table.name, TableRecord(table_id=now.table_id, version=now.version))


def _removed(delta: DeltaTable) -> dict[str, Any]:
    """Returns how many files and bytes VACUUM deleted. VACUUM writes one commit at its start and one at its end, so the numbers are in the
    newest two commits.
    """
    found: dict[str, Any] = {}
    for commit in delta.log.history(2):
        metrics = commit.get("operationMetrics") or {}
        names = {"removed_files": "numDeletedFiles", "removed_bytes": "sizeOfDataToDelete"}
        found |= {mine: int(metrics[theirs]) for mine, theirs in names.items() if theirs in metrics}
    return found


def _record(table: MaintainedTable) -> str:
    """Returns the metadata that marks commits of this maintenance as Sluice's."""
    return maintenance_record(table.owner, table.run)


def newest_snapshot_age_hours(
    path: str, storage_options: Mapping[str, str] | None = None, names: Collection[str] | None = None
) -> float | None:
    """Returns for how many hours VACUUM must keep files that left their tables, so that the newest consistent snapshot can be read. Returns
    None if there is no snapshot. Considers only the tables `names`, if given. Raises TableError if the table of snapshots cannot be read.

    The hours are counted from the earliest of these times: the first publication of the snapshot, and for each table, the first commit
    after the table's version in the snapshot. If the snapshot was published again after tables were corrected, the first publication
    counts, because most tables are still at its versions.
    """
    options = dict(storage_options or {}) or None
    try:
        log = deltalake.DeltaTable(path, storage_options=options)
        newest = newest_row(log)
        if newest is None:
            return None
        rows: Any = pa.table(log.scan(columns=["published_at"], predicate=f"order_key = {newest['order_key']}"))
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise TableError(
            CONSISTENT_SNAPSHOTS,
            f"the consistent snapshots of the tables at {path} cannot be read: {error}; check their disk or object store",
        ) from error
    tables: dict[str, dict[str, Any]] = json.loads(newest["tables"])
    left = (_superseded_at(found, options) for name, found in tables.items() if names is None or name in names)
    since: dt.datetime = min([*rows["published_at"].to_pylist(), *(at for at in left if at is not None)])
    return max(0.0, (dt.datetime.now(dt.UTC) - since).total_seconds() / 3600)


def _superseded_at(found: Mapping[str, Any], options: dict[str, str] | None) -> dt.datetime | None:
    """Returns the time of the first commit after a table version that a consistent snapshot needs. `found` has the path and the version of
    the table. Returns None if there is no later commit, or if the log cannot be read at this commit.
    """
    try:
        log = deltalake.DeltaTable(str(found["path"]), storage_options=options)
        if log.version() <= int(found["version"]):
            return None
        log.load_as_version(int(found["version"]) + 1)
        (commit,) = log.history(1)
    except (DeltaError, OSError, ValueError):
        return None
    return dt.datetime.fromtimestamp(int(commit["timestamp"]) / 1e3, dt.UTC)


def prune_consistent_snapshots(
    path: str, hours: float, fence: Fence, storage_options: Mapping[str, str] | None = None
) -> int:
    """Removes the consistent snapshots that were published more than `hours` ago, because VACUUM is about to delete files of these
    snapshots. Every remaining snapshot can be read. A snapshot that was published again is as old as its oldest row.

    Also joins the files of the table of snapshots. Returns the number of removed rows. Raises TableError if Delta refuses the write.
    """
    limit = dt.datetime.now(dt.UTC) - dt.timedelta(hours=hours)
    try:
        log = deltalake.DeltaTable(path, storage_options=dict(storage_options or {}) or None)
        begun = log.version()
        rows: Any = pa.table(log.scan(columns=["order_key", "published_at"]))
        old = pc.less(rows["published_at"], pa.scalar(limit, pa.timestamp("us", "UTC")))
        amended = set(rows.filter(old)["order_key"].to_pylist()) & set(
            rows.filter(pc.invert(old))["order_key"].to_pylist()
        )
        fence.check(CONSISTENT_SNAPSHOTS)
        gone = log.delete(
            f"published_at < arrow_cast('{limit.isoformat()}', 'Timestamp(Microsecond, Some(\"UTC\"))')"
            + (f" OR order_key IN ({', '.join(map(str, sorted(amended)))})" if amended else "")
        )
        fence.check(CONSISTENT_SNAPSHOTS)
        log.optimize.compact()
        fence.check(CONSISTENT_SNAPSHOTS)
        log.vacuum(retention_hours=1, enforce_retention_duration=False, dry_run=False)
        log.update_incremental()
        sync_commits(path, begun, log.version())
    except TableNotFoundError:
        return 0
    except (DeltaError, OSError) as error:
        raise TableError(
            CONSISTENT_SNAPSHOTS,
            f"the consistent snapshots of the tables at {path} cannot be cleaned up: {error}; the next "
            "maintenance run tries again",
            own=False,
        ) from error
    return int(gone["num_deleted_rows"] or 0)
