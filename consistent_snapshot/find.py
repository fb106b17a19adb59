"""Finds a consistent snapshot of a destination's tables. Reads the Delta table `_sluice_consistent_snapshots`, in which each row names the
version of every table of the destination at one position of the source.

A run writes a row after it has merged a batch into all tables of the batch (`spark_jobs.consistent_snapshots`).
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from collections.abc import Mapping
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError, TableNotFoundError

FOLDER = "_sluice_consistent_snapshots"
FIELDS: list[tuple[str, pa.DataType]] = [
    ("order_key", pa.int64()),
    ("commit_time", pa.timestamp("us", "UTC")),
    ("published_at", pa.timestamp("us", "UTC")),
    ("epoch", pa.int64()),
    ("file", pa.string()),
    ("offset", pa.int64()),
    ("gtid_set", pa.string()),
    ("server_uuid", pa.string()),
    ("ledger", pa.string()),
    ("delivery", pa.int64()),
    ("run", pa.string()),
    ("tables", pa.string()),
]
SCHEMA = pa.schema(FIELDS)


class ConsistentSnapshotError(Exception):
    """Raised if there is no consistent snapshot up to the requested time, if the consistent snapshots cannot be read, or if the version of
    a table in a consistent snapshot cannot be opened. The message says what to do.
    """


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableAtVersion:
    """One table of a consistent snapshot. `version` is the table's Delta version. `table_id` is the table's id in Delta's metadata. By this
    id, readers notice that the table was dropped and created again. If `stopped`, the table has stopped or is no longer captured, so it is
    at an earlier position than the other tables.
    """

    name: str
    path: str
    version: int
    table_id: str
    stopped: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConsistentSnapshot:
    """A consistent snapshot: a position of the source, and the version of each table at this position. `commit_time` is the time of the
    last transaction in the consistent snapshot. `tables` has the tables by "database.table".
    """

    order_key: int
    commit_time: dt.datetime
    published_at: dt.datetime
    epoch: int
    file: str
    offset: int
    gtid_set: str
    server_uuid: str
    tables: Mapping[str, TableAtVersion]


def consistent_snapshots_path(lake: str, destination: str) -> str:
    """Returns the path of the Delta table with a destination's consistent snapshots. `lake` may end in a slash, as in conf/."""
    return f"{str(lake).rstrip('/')}/{FOLDER}/{destination}"


NONE_YET = (
    "{path} has no consistent snapshot of the tables of {destination}: check the path of the lake and the name of the "
    "destination, or wait for the first merged batch, which writes one"
)


def read_consistent_snapshot(
    lake: str,
    destination: str,
    *,
    at: dt.datetime | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> ConsistentSnapshot:
    """Returns the newest consistent snapshot, or with `at` the newest one whose transactions were all committed up to `at`. Raises
    ConsistentSnapshotError if there is no such consistent snapshot, or if the consistent snapshots cannot be read.
    """
    path = consistent_snapshots_path(lake, destination)
    try:
        log = deltalake.DeltaTable(path, storage_options=dict(storage_options or {}) or None)
        row = newest_row(log, at)
        oldest = None if row else _oldest(log)
    except TableNotFoundError as error:
        raise ConsistentSnapshotError(NONE_YET.format(path=path, destination=destination)) from error
    except (DeltaError, OSError) as error:
        raise ConsistentSnapshotError(
            f"the consistent snapshots of the tables at {path} cannot be read: {error}; check the disk or "
            "object store of the lake"
        ) from error
    if row is None and oldest is None:
        raise ConsistentSnapshotError(NONE_YET.format(path=path, destination=destination))
    if row is None:
        raise ConsistentSnapshotError(
            f"no consistent snapshot of {destination} is as old as {at}; the oldest consistent snapshot is from "
            f"{oldest}: choose a time that is not before it"
        )
    return _snapshot_of(row)


def newest_row(log: deltalake.DeltaTable, at: dt.datetime | None = None) -> dict[str, Any] | None:
    """Returns the row of the newest consistent snapshot, or with `at` of the newest one whose transactions were all committed up to `at`.
    Returns None if there is none.

    Reads the column `tables` only for the returned row, because the column is large. Raises DeltaError.
    """
    published: Any = pa.table(log.scan(columns=["order_key", "commit_time", "published_at"]))
    if at is not None:
        published = published.filter(pc.less_equal(published["commit_time"], pa.scalar(at, pa.timestamp("us", "UTC"))))
    if not published.num_rows:
        return None
    newest = published.sort_by([("order_key", "descending"), ("published_at", "descending")]).slice(0, 1).to_pylist()[0]
    rows = pa.table(log.scan(predicate=f"order_key = {newest['order_key']}")).to_pylist()
    return max(rows, key=lambda row: row["published_at"])


def _oldest(log: deltalake.DeltaTable) -> dt.datetime | None:
    times: Any = pa.table(log.scan(columns=["commit_time"]))["commit_time"]
    return pc.min(times).as_py()  # type: ignore[no-any-return]


def _snapshot_of(row: Mapping[str, Any]) -> ConsistentSnapshot:
    tables = {name: TableAtVersion(name=name, **found) for name, found in json.loads(row["tables"]).items()}
    names = {field.name for field in dataclasses.fields(ConsistentSnapshot)} - {"tables"}
    return ConsistentSnapshot(**{name: row[name] for name in names}, tables=tables)
