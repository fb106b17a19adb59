"""Appends to the destination's quarantine table the values of a batch that could not be decoded, each exactly once. `run_batch` calls this
module.

The staged file is small and its columns are known, so deltalake writes it without Spark. The commit has one transaction per source table.
The transaction's app id identifies the table, and its version is the highest order key of the table's values. Values that the quarantine
already has are left out. Each source table has its own transaction, because a resumed table has older values than other tables. A
transaction for all tables would make these older values look as if the quarantine had them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError, TableNotFoundError

from sluice.batch_manifest.values import StagedQuarantine
from sluice.spark_jobs.durable_lake import sync_commits
from sluice.spark_jobs.errors import StagedBatchError, TableError
from sluice.spark_jobs.fence import Fence
from sluice.spark_jobs.merging.merge import staged_at
from sluice.spark_jobs.staged_batch import StagedBatch

NAME = "quarantine"


def append_quarantine(batch: StagedBatch, path: str, storage_options: Mapping[str, str], fence: Fence) -> int:
    """Appends those values of the batch that the quarantine table at `path` does not have. Returns the number of appended rows.

    Raises StagedBatchError if the staged file cannot be read or differs from the manifest, or if `path` is empty. Raises TableError if
    Delta refuses the write, or if another commit replaced the run's commit.
    """
    if batch.quarantine is None:
        return 0
    if not path:
        raise StagedBatchError(
            f"{batch.directory} has values for the quarantine, but the merge got no path of the quarantine table: set "
            "`quarantine_path` in its BatchContext"
        )
    staged = _staged(batch.quarantine)
    try:
        fresh, transactions = _lacking(staged, batch, path, storage_options)
        if fresh.num_rows:
            _append(fence, fresh, path, transactions, storage_options)
            _require_kept(path, transactions, storage_options)
        _keep_on_disk(batch, path, storage_options)
    except (DeltaError, OSError) as error:
        raise TableError(
            NAME,
            (
                f"the Delta table {path} cannot be written: {error}; check the disk or object store of the table; "
                "Sluice tries the batch again"
            ),
            own=False,
        ) from error
    return int(fresh.num_rows)


def _require_kept(path: str, transactions: list[deltalake.Transaction], storage_options: Mapping[str, str]) -> None:
    """Reads the run's commit back. Raises TableError if another commit has replaced the run's commit. In an object store, a commit that
    Spark began earlier can replace it.
    """
    there = _opened(path, storage_options)
    if any(there is None or there.transaction_version(each.app_id) != each.version for each in transactions):
        why = (
            f"the Delta table {path} does not have the rows that this run committed, because another commit "
            "replaced them; Sluice merges the batch again"
        )
        raise TableError(NAME, why, own=False)


def _keep_on_disk(batch: StagedBatch, path: str, storage_options: Mapping[str, str]) -> None:
    """Syncs to disk all commits that the quarantine table has got since the batch was staged, including those of earlier attempts. These
    commits must be on disk before the batch is acked.
    """
    there = _opened(path, storage_options)
    if there is not None:
        sync_commits(path, there.version(), there.version(), since_seconds=staged_at(batch))


def app_id(batch: StagedBatch, name: str) -> str:
    """Returns the app id of the Delta transaction that stores the highest order key of the quarantined values of "database.table"
    (`name`).
    """
    return f"sluice/{batch.destination}/{batch.ledger_id}/{NAME}/{name}"


def _lacking(
    staged: pa.Table, batch: StagedBatch, path: str, storage_options: Mapping[str, str]
) -> tuple[pa.Table, list[deltalake.Transaction]]:
    """Returns the values that the quarantine does not have yet, and one transaction for each source table that has such values."""
    there = _opened(path, storage_options)
    parts: list[pa.Table] = [staged.slice(0, 0)]
    transactions = []
    for database, table in _tables(staged):
        mine: Any = pc.and_(
            pc.equal(staged["database"], pa.scalar(database)), pc.equal(staged["table"], pa.scalar(table))
        )
        name = app_id(batch, f"{database}.{table}")
        applied = there.transaction_version(name) if there is not None else None
        newer: Any = pc.and_(mine, pc.greater(staged["order_key"], pa.scalar(-1 if applied is None else applied)))
        part = staged.filter(newer)
        if part.num_rows:
            parts.append(part)
            last: Any = pc.max(part["order_key"])
            transactions.append(deltalake.Transaction(name, last.as_py()))
    return pa.concat_tables(parts), transactions


def _tables(staged: pa.Table) -> list[tuple[str, str]]:
    pairs: Any = staged.group_by(["database", "table"]).aggregate([])
    return sorted(zip(pairs["database"].to_pylist(), pairs["table"].to_pylist(), strict=True))


def _staged(quarantine: StagedQuarantine) -> pa.Table:
    file, again = quarantine.file, "; Sluice stages the batch again"
    try:
        staged = pq.read_table(file)
    except (pa.ArrowException, OSError) as error:
        raise StagedBatchError(f"the manifest names the file {file}, which cannot be read: {error}{again}") from error
    if staged.num_rows != quarantine.rows:
        raise StagedBatchError(
            f"the file {file} has {staged.num_rows} rows instead of the {quarantine.rows} rows in the manifest{again}"
        )
    return staged


def _opened(path: str, storage_options: Mapping[str, str]) -> deltalake.DeltaTable | None:
    try:
        return deltalake.DeltaTable(path, storage_options=dict(storage_options) or None)
    except TableNotFoundError:
        return None


def _append(
    fence: Fence,
    rows: pa.Table,
    path: str,
    transactions: list[deltalake.Transaction],
    storage_options: Mapping[str, str],
) -> None:
    fence.check(NAME)
    deltalake.write_deltalake(
        path,
        rows,
        mode="append",
        schema_mode="merge",  # Somebody may have added columns to the table, for example for notes.
        storage_options=dict(storage_options) or None,
        commit_properties=deltalake.CommitProperties(app_transactions=transactions),
    )
