"""Publishes a consistent snapshot of the tables: when all tables have a batch, appends one row with the version of every table of the
destination.

The row is the last commit of a run. The run makes it under the run lock, so only maintenance by other programs can change table versions
meanwhile. If the run crashes before it, the previous snapshot is still the newest: the repeated batch finds its tables merged, and
publishes the snapshot. If the run crashes after it, the repeated batch finds the commit's transaction in the log, and writes nothing."""

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

from sluice.lake_cut.cut import SCHEMA, newest_row
from sluice.spark_jobs.durable_lake import sync_commits
from sluice.spark_jobs.errors import LostCommitError, TableError
from sluice.spark_jobs.fence import Fence
from sluice.spark_jobs.staged_batch import StagedBatch
from sluice.spark_jobs.table_owner import TableRecord

NAME = "_sluice_cuts"
# After every CUTS_MAX commits, the table is rewritten with its newest CUTS_KEPT rows, which cover almost three days at
# one batch per minute.
CUTS_MAX, CUTS_KEPT = 5_000, 4_000
ROWS_AT_ONCE = 32  # The number of rows that a rewrite has in memory.
# Consecutive rows are almost equal, so this compression makes them several times smaller than the one of single rows.
TOGETHER = deltalake.WriterProperties(compression="ZSTD", max_row_group_size=ROWS_AT_ONCE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedTables:
    """The content of a consistent snapshot. `tables`: "database.table" → (path, record of the last run). `stopped`: names of stopped
    tables. `run`: id of the run.
    """

    tables: Mapping[str, tuple[str, TableRecord]]
    stopped: Collection[str] = ()
    run: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AmendedTable:
    """A table that was corrected outside the stream. `tables`: name → (path, id and version), for the table, its change log and its
    history. `label`: the order key up to which the table has its changes. `newest`: `newest_order_key` at the time of the correction.
    """

    tables: Mapping[str, tuple[str, TableRecord]]
    label: int
    newest: int | None


def app_id(batch: StagedBatch) -> str:
    """Returns the app id of the Delta transaction that stores the last position that a ledger published in the table of snapshots."""
    return f"sluice/{batch.destination}/{batch.ledger_id}/{NAME}"


def publish_cut(
    batch: StagedBatch,
    path: str,
    published: PublishedTables,
    fence: Fence,
    storage_options: Mapping[str, str] | None = None,
) -> bool:
    """Publishes a consistent snapshot unless the ledger has already published this position or a later one. Returns whether it published.
    Raises TableError if Delta refuses the write.
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
    """Returns the order key of the newest consistent snapshot; None if there is none. Reads it from the file statistics in the Delta log,
    without reading files. Raises TableError if the log cannot be read.
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
    """Publishes the newest consistent snapshot again with later versions of the amended tables. Returns whether it wrote.

    An amended table is left out in two cases. First, its label is above the snapshot's order key: it has changes of a batch that not all
    tables have yet, and the next batch's snapshot includes it. Second, a batch has published a snapshot since the correction. This snapshot
    already has the table at this version or a later one, and records whether the table is stopped. Raises TableError if Delta refuses the
    write.
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
    """Returns whether a table's record is newer than its entry in a snapshot: the snapshot has no entry, another table, or an earlier
    version. A stopped table with the same version counts as newer, because a run that was killed after a publication publishes the table
    again. A later version in the snapshot, made by a repair, is retained.
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
    """Syncs the newest commit to disk, even if an earlier attempt made it and ended before the sync."""
    sync_commits(path, log.version() - 1, log.version())


def _refused(path: str, error: Exception) -> TableError:
    why = (
        f"the consistent snapshots of the tables at {path} cannot be written: {error}; move the folder {path} "
        "away, and the next batch creates a new one"
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
    """Appends the row and returns the table. After every CUTS_MAX commits, rewrites the table with its newest rows, and deletes files that
    no reader needs any more.
    """
    rows: Any = row
    mode, written = "append", None
    if log is not None and log.version() and log.version() % CUTS_MAX == 0:
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
    """Streams the newest rows of the table and `row`. With thousands of tables a row has hundreds of kilobytes, and all of them would not
    fit into a run's memory.

    Checks the fence again at the end of the stream, because the commit follows then, and reading thousands of files takes minutes.
    """
    keys: Any = pa.table(log.scan(columns=["order_key"]))["order_key"].to_pylist()
    oldest = sorted(keys)[-CUTS_KEPT:][0]
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
