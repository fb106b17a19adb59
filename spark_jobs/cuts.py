"""Publishes a consistent snapshot of the tables: after a batch is in all of its tables, it appends one row with the version of every table
of the destination.

It is the run's last commit and is made under the run lock, so that meanwhile only maintenance by others can change table versions. After
a crash before this commit, the previous snapshot stays the newest; the batch is merged again, its tables are found to be done, and the
snapshot is published. After a crash after this commit, the snapshot is correct: the repeated batch finds the commit's transaction in the
log and writes nothing."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError, TableNotFoundError

from sluice.lake_cut.cut import SCHEMA, newest_row
from sluice.spark_jobs.durable_lake import sync_commits
from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.fence import Fence
from sluice.spark_jobs.staged_batch import StagedBatch
from sluice.spark_jobs.table_owner import TableRecord

NAME = "_sluice_cuts"
# After CUTS_MAX commits the table is rewritten with its newest CUTS_KEPT rows, a few days at one batch per minute.
CUTS_MAX, CUTS_KEPT = 5_000, 4_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedTables:
    """The content of a consistent snapshot. `tables`: "database.table" → (path, record of the last run). `stopped`: the stopped tables."""

    tables: Mapping[str, tuple[str, TableRecord]]
    stopped: Collection[str] = ()
    run: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AmendedTable:
    """A table that was corrected outside the stream. `tables`: name → (path, id and version), for the table and its change log and history.
    `label`: the order key up to which they have their changes. `newest`: the order key of the newest snapshot when the table was corrected
    (`newest_order_key`).
    """

    tables: Mapping[str, tuple[str, TableRecord]]
    label: int
    newest: int | None


def app_id(batch: StagedBatch) -> str:
    """Returns the app id under which the table of snapshots stores the last position that a ledger published."""
    return f"sluice/{batch.destination}/{batch.ledger_id}/{NAME}"


def publish_cut(
    batch: StagedBatch,
    path: str,
    published: PublishedTables,
    fence: Fence,
    storage_options: Mapping[str, str] | None = None,
) -> bool:
    """Publishes a consistent snapshot unless this position or a later one was published. Returns whether it did. Raises TableError if
    Delta refuses the write.
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
        _sync(path, log)
    except (DeltaError, OSError) as error:
        raise _refused(path, error) from error
    return done is None or done < key


def newest_order_key(path: str, storage_options: Mapping[str, str] | None = None) -> int | None:
    """Returns the order key of the newest consistent snapshot; None if there is none. It reads the statistics in the Delta log, because
    each row is in a file of its own. Raises TableError if the log cannot be read.
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
    """Writes the newest consistent snapshot again with later versions of tables. Returns whether it wrote.

    A table whose label is above the snapshot's order key is left out, and the next batch's snapshot includes it: changes of a batch that
    is not in all tables belong to no snapshot yet. A table is also left out if a batch has published a snapshot since the correction: that
    batch's snapshot has the table, at this version or a later one, and records whether it has stopped. Raises TableError if Delta refuses
    the write.
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
        _sync(path, _appended(fence, log, path, pa.Table.from_pylist([row], schema=SCHEMA), None, options))
    except (DeltaError, OSError) as error:
        raise _refused(path, error) from error
    return True


def _is_later(record: TableRecord, there: Mapping[str, Any] | None) -> bool:
    """Returns whether a snapshot has an earlier version of a table, another table, or none. For a stopped table it may have the same
    version: a run that was killed after it published the table publishes it again. It may also have a later version, made by a repair.
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
    """Syncs the newest commit to disk, even if an earlier attempt made it and stopped before the sync."""
    sync_commits(path, log.version() - 1, log.version())


def _refused(path: str, error: Exception) -> TableError:
    why = (
        f"the consistent snapshots of the tables at {path} cannot be written: {error}; move that table away, and the next batch "
        "writes a new one"
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
    """Appends the row and returns the table. After CUTS_MAX commits it rewrites the table with its newest rows, and deletes files that no
    reader needs any more.
    """
    rows, mode = row, "append"
    if log is not None and log.version() and log.version() % CUTS_MAX == 0:
        newest = pa.table(log.scan()).cast(SCHEMA).sort_by([("order_key", "descending")]).slice(0, CUTS_KEPT)
        rows, mode = pa.concat_tables([newest, row]), "overwrite"
    properties = deltalake.CommitProperties(app_transactions=[transaction] if transaction else None)
    fence.check(NAME)
    deltalake.write_deltalake(path, rows, mode=mode, storage_options=options, commit_properties=properties)  # type: ignore[call-overload]
    if log is None:
        return _opened(path, options)
    log.update_incremental()
    if mode == "overwrite":
        log.vacuum(dry_run=False)
    return log


def _opened(path: str, options: dict[str, str] | None) -> Any:
    try:
        return deltalake.DeltaTable(path, storage_options=options)
    except TableNotFoundError:
        return None
