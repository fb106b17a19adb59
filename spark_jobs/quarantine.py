"""Appends a batch's values that could not be decoded to the destination's quarantine table, once whatever happens. `run_batch` calls it.

The staged file is small and its columns are known, so deltalake writes it: Spark has no part in it. The commit carries the greatest order
key of its values as txnVersion, and what the table has already is left out, as for every other table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError, TableNotFoundError

from spark_jobs.errors import StagedBatchError, TableError
from spark_jobs.staged_batch import MANIFEST, StagedBatch

NAME = "quarantine"


def append_quarantine(batch: StagedBatch, path: str, storage_options: Mapping[str, str]) -> int:
    """Rows appended. Raises StagedBatchError where the staged file is not what its manifest says, TableError where Delta refuses."""
    entry = json.loads((batch.directory / MANIFEST).read_bytes()).get("quarantine")
    if not entry:
        return 0
    if not path:
        raise StagedBatchError(f"{batch.directory} has values for the quarantine, and no path of it is configured")
    staged = _staged(batch.directory / Path(entry["file"]).name, entry)
    app_id = f"sluice/{batch.destination}/{batch.epoch}/{NAME}"
    try:
        applied = _applied(path, app_id, storage_options)
        newer: Any = pc.greater(staged["order_key"], pa.scalar(applied))
        fresh = staged.filter(newer)
        if fresh.num_rows:
            _append(fresh, path, deltalake.Transaction(app_id, int(entry["last_order_key"])), storage_options)
    except (DeltaError, OSError) as error:
        raise TableError(NAME, f"the Delta table {path} cannot be written: {error}") from error
    return int(fresh.num_rows)


def _staged(file: Path, entry: Mapping[str, Any]) -> pa.Table:
    again = "; roll the batch back to have it staged again"
    try:
        staged = pq.read_table(file)
    except (pa.ArrowException, OSError) as error:
        raise StagedBatchError(f"{file} is named by the manifest and cannot be read: {error}{again}") from error
    if staged.num_rows != entry["rows"]:
        raise StagedBatchError(f"{file} has {staged.num_rows} rows, its manifest says {entry['rows']}{again}")
    return staged


def _applied(path: str, app_id: str, storage_options: Mapping[str, str]) -> int:
    try:
        table = deltalake.DeltaTable(path, storage_options=dict(storage_options) or None)
    except TableNotFoundError:
        return -1
    version = table.transaction_version(app_id)
    return -1 if version is None else version


def _append(rows: pa.Table, path: str, transaction: deltalake.Transaction, storage_options: Mapping[str, str]) -> None:
    deltalake.write_deltalake(
        path,
        rows,
        mode="append",
        storage_options=dict(storage_options) or None,
        commit_properties=deltalake.CommitProperties(app_transactions=[transaction]),
    )
