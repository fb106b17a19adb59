"""Publishes a consistent snapshot of the tables: after a batch is merged into all of its tables, appends one row with the version of every
table of the destination.

The commit of this row is the last one of a run. The run holds the run lock, so no other run of the destination changes table versions
meanwhile; only other programs can.

If the run crashes before this commit, the previous snapshot stays the newest one. The next run finds the tables of the batch merged, and
publishes the snapshot. If the run crashes after this commit, the next run finds the commit's transaction in the log, and writes nothing.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError, TableNotFoundError

from sluice.consistent_snapshot.find import SCHEMA, newest_row
from sluice.spark_jobs.durable_lake import sync_commits
from sluice.spark_jobs.errors import LostCommitError, TableError
from sluice.spark_jobs.fence import Fence
from sluice.spark_jobs.staged_batch import StagedBatch
from sluice.spark_jobs.table_owner import TableRecord

NAME = "_sluice_consistent_snapshots"
# After every SNAPSHOTS_MAX commits, the table is rewritten with its newest SNAPSHOTS_KEPT rows, which cover almost three days at
# one batch per minute.
SNAPSHOTS_MAX, SNAPSHOTS_KEPT = 5_000, 4_000
ROWS_AT_ONCE = 32  # A rewrite has this many rows in memory at a time.
# How a rewrite compresses the rows: ROWS_AT_ONCE rows together. Consecutive rows are almost equal, so they are several times smaller than
# the same rows compressed one by one.
TOGETHER = deltalake.WriterProperties(compression="ZSTD", max_row_group_size=ROWS_AT_ONCE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedTables:
    """The content of a consistent snapshot: for each "database.table" its path and the record that the last run stored (`tables`), the
    names of stopped tables (`stopped`), and the id of the run (`run`).
    """

    tables: Mapping[str, tuple[str, TableRecord]]
    stopped: Collection[str] = ()
    run: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AmendedTable:
    """A table that was corrected outside the stream, for example by a repair.

    - `tables` has the path and the record (id and version) of the table, of its change log and of its history, by name.
    - `label` is the order key up to which the table has its changes.
    - `newest` is the order key that the newest consistent snapshot had when the table was corrected. It is None if there was no snapshot.
    """

    tables: Mapping[str, tuple[str, TableRecord]]
    label: int
    newest: int | None


def app_id(batch: StagedBatch) -> str:
    """Returns the app id of a Delta transaction in the table of snapshots. The transaction stores the order key of the last consistent
    snapshot that this ledger published.
    """
    return f"sluice/{batch.destination}/{batch.ledger_id}/{NAME}"


def publish_consistent_snapshot(
    batch: StagedBatch,
    path: str,
    published: PublishedTables,
    fence: Fence,
    storage_options: Mapping[str, str] | None = None,
) -> bool:
    """Publishes a consistent snapshot, unless this ledger has already published one at this position or a later one. Returns whether it
    published one. Raises TableError if Delta refuses the write, or if another writer replaced the commit.
    """
    options = dict(storage_options or {}) or None
    key = batch.end_order_key
    try:
        log = _opened(path, options)
        done = log.transaction_version(app_id(batch)) if log is not None else None
        if done is None or done < key:
            log = _appended(
                fence, log, path, _row(batch, published), deltalake.Transaction(app_id(batch), key), options
            )
            if log.transaction_version(app_id(batch)) != key:
                raise LostCommitError(NAME, path, log.version() - 1)
        _sync(path, log)
    except (DeltaError, OSError) as error:
        raise _refused(path, error) from error
    return done is None or done < key


def newest_order_key(path: str, storage_options: Mapping[str, str] | None = None) -> int | None:
    """Returns the order key of the newest consistent snapshot, or None if there is none. Reads only the file statistics in the Delta log.
    Raises TableError if the log cannot be read.
    """
    try:
        log = _opened(path, dict(storage_options or {}) or None)
        if log is None:
            return None
        files: Any = pa.table(log.get_add_actions(flatten=True))
    except (DeltaError, OSError) as error:
        raise TableError(
            NAME, f"the Delta table {path} cannot be read: {error}; check its disk or object store", own=False
        ) from error
    return pc.max(files["max.order_key"]).as_py() if files.num_rows else None


def amend_newest(
    path: str, amended: Iterable[AmendedTable], fence: Fence, storage_options: Mapping[str, str] | None = None
) -> bool:
    """Publishes the newest consistent snapshot again, with the corrected versions of the tables in `amended`. Returns whether it wrote.
    Raises TableError if Delta refuses the write, or if another writer replaced the commit.

    A table in `amended` is left out in three cases:

    - The table has changes after the snapshot's order key (`AmendedTable.label`), and the snapshot's versions of other tables lack the
      changes of the same batch. The next batch's snapshot includes the table.
    - A batch has published a snapshot since the correction. That snapshot already has the corrected version or a later one.
    - The newest snapshot already has the corrected version or a later one, and does not mark the table as stopped.
    """
    options = dict(storage_options or {}) or None
    try:
        log = _opened(path, options)
        newest = newest_row(log) if log is not None else None
        if newest is None:
            return False
        tables = json.loads(newest["tables"])
        key = newest["order_key"]
        fitting = [each.tables for each in amended if each.label <= key and each.newest == key]
        later = {
            name: location
            for each in fitting
            for name, location in each.items()
            if _is_later(location[1], tables.get(name))
        }
        if not later:
            return False
        for name, (location, record) in later.items():
            tables[name] = {"path": location, "version": record.version, "table_id": record.table_id, "stopped": False}
        row = {**newest, "published_at": dt.datetime.now(dt.UTC), "tables": json.dumps(tables)}
        log = _appended(fence, log, path, pa.Table.from_pylist([row], schema=SCHEMA), None, options)
        if row not in pa.table(log.scan(predicate=f"order_key = {key}")).to_pylist():
            raise LostCommitError(NAME, path, log.version() - 1)
        _sync(path, log)
    except (DeltaError, OSError) as error:
        raise _refused(path, error) from error
    return True


def _is_later(record: TableRecord, there: Mapping[str, Any] | None) -> bool:
    """Returns whether a table's record is newer than the table's entry in a snapshot (`there`). The record is newer if the entry is
    missing, has the id of another table, or has an earlier version. An entry with a later version, which a repair made, is kept.

    With equal versions, the record is newer only if the entry marks the table as stopped. This happens if a run is killed after it has
    published a re-snapshot of a stopped table: the next run completes the publication without a new version of the table.
    """
    if there is None or there["table_id"] != record.table_id:
        return True
    version: int = there["version"]
    return version < record.version or (version == record.version and bool(there["stopped"]))


def _row(batch: StagedBatch, published: PublishedTables) -> pa.Table:
    end: Mapping[str, Any] = batch.end
    tables = {
        name: {
            "path": path,
            "version": record.version,
            "table_id": record.table_id,
            "stopped": name in published.stopped,
        }
        for name, (path, record) in sorted(published.tables.items())
    }
    row = {
        "order_key": batch.end_order_key,
        "commit_time": dt.datetime.fromtimestamp(int(end.get("time_us") or 0) / 1e6, dt.UTC),
        "published_at": dt.datetime.now(dt.UTC),
        "epoch": batch.epoch,
        "file": str(end.get("file", "")),
        "offset": int(end.get("offset") or 0),
        "gtid_set": str(end.get("gtid_set", "")),
        "server_uuid": str(end.get("server_uuid", "")),
        "ledger": batch.ledger_id,
        "delivery": batch.delivery,
        "run": published.run,
        "tables": json.dumps(tables),
    }
    return pa.Table.from_pylist([row], schema=SCHEMA)


def _sync(path: str, log: Any) -> None:
    """Syncs the newest commit to disk. An earlier attempt may have made this commit and ended before it synced the commit."""
    sync_commits(path, log.version() - 1, log.version())


def _refused(path: str, error: Exception) -> TableError:
    why = (
        f"the consistent snapshots of the tables at {path} cannot be written: {error}; check the disk or object store. "
        "If the Delta table there is damaged, move its folder away: the next batch creates a new one"
    )
    return TableError(NAME, why, own=False)


def _appended(  # noqa: PLR0917  two callers, alike
    fence: Fence,
    log: Any,
    path: str,
    row: pa.Table,
    transaction: deltalake.Transaction | None,
    options: dict[str, str] | None,
) -> Any:
    """Appends the row and returns the table. After every SNAPSHOTS_MAX commits, rewrites the table with its newest rows instead, and
    deletes the files that left the table more than a week ago.
    """
    rows: Any = row
    mode, written = "append", None
    if log is not None and log.version() and log.version() % SNAPSHOTS_MAX == 0:
        rows, mode, written = _with_newest(fence, log, row), "overwrite", TOGETHER
    properties = deltalake.CommitProperties(app_transactions=[transaction] if transaction else None)
    fence.check(NAME)
    deltalake.write_deltalake(  # type: ignore[call-overload]
        path, rows, mode=mode, storage_options=options, commit_properties=properties, writer_properties=written
    )
    if log is None:
        return _opened(path, options)
    log.update_incremental()
    if mode == "overwrite":
        log.vacuum(dry_run=False)
    return log


def _with_newest(fence: Fence, log: Any, row: pa.Table) -> pa.RecordBatchReader:
    """Streams the newest rows of the table, then `row`. With thousands of tables one row has hundreds of kilobytes, so all rows together
    would not fit into a run's memory.

    Checks the fence again at the end of the stream, immediately before the commit, because reading the rows may take minutes.
    """
    keys: Any = pa.table(log.scan(columns=["order_key"]))["order_key"].to_pylist()
    oldest = sorted(keys)[-SNAPSHOTS_KEPT:][0]
    kept = log.to_pyarrow_dataset().scanner(
        filter=pc.field("order_key") >= oldest, batch_size=ROWS_AT_ONCE, batch_readahead=1, fragment_readahead=1
    )

    def batches() -> Iterator[pa.RecordBatch]:
        for each in itertools.chain(kept.to_batches(), row.to_batches()):
            yield from pa.Table.from_batches([each]).select(SCHEMA.names).cast(SCHEMA).to_batches()
        fence.check(NAME)

    return pa.RecordBatchReader.from_batches(SCHEMA, batches())


def _opened(path: str, options: dict[str, str] | None) -> Any:
    try:
        return deltalake.DeltaTable(path, storage_options=options)
    except TableNotFoundError:
        return None
