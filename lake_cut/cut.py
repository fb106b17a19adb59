"""A consistent cut: which version of each table of a destination belongs to one position of the source. A row of `_sluice_cuts`.

A run writes one as its last commit, after all tables of the batch (`spark_jobs.cuts`); read here.
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

FOLDER = "_sluice_cuts"
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


class CutError(Exception):
    """There is no cut that was asked for, or a table is not what the cut says; the message says what to do."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CutTable:
    """One table of a cut. `stopped`: it stands still, at an earlier position than the others."""

    name: str
    path: str
    version: int
    table_id: str
    stopped: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cut:
    """A position of the source, and the version that each table has of it. `commit_time`: of the last transaction in it."""

    order_key: int
    commit_time: dt.datetime
    published_at: dt.datetime
    epoch: int
    file: str
    offset: int
    gtid_set: str
    server_uuid: str
    tables: Mapping[str, CutTable]


def cuts_path(lake: str, destination: str) -> str:
    """The Delta table with the cuts of a destination."""
    return f"{lake}/{FOLDER}/{destination}"


def read_cut(
    lake: str,
    destination: str,
    *,
    at: dt.datetime | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Cut:
    """The newest cut; with `at`, the newest whose transactions were all committed by then. Raises CutError."""
    path = cuts_path(lake, destination)
    try:
        log = deltalake.DeltaTable(path, storage_options=dict(storage_options or {}) or None)
        row = newest_row(log, at)
        oldest = None if row else _oldest(log)
    except TableNotFoundError as error:
        raise CutError(
            f"there is no cut of {destination} at {path} yet: the first batch that is merged writes one"
        ) from error
    except (DeltaError, OSError) as error:
        raise CutError(f"the cuts at {path} cannot be read: {error}") from error
    if row is None:
        raise CutError(f"no cut of {destination} is as old as {at}; the oldest is of {oldest}")
    return _cut(row)


def newest_row(log: deltalake.DeltaTable, at: dt.datetime | None = None) -> dict[str, Any] | None:
    """The row of the newest cut, or of the newest whose transactions were all committed by then; None where there is none.

    The names of all tables are in each row, so they are read of one row alone. Raises DeltaError.
    """
    places: Any = pa.table(log.scan(columns=["order_key", "commit_time", "published_at"]))
    if at is not None:
        places = places.filter(pc.less_equal(places["commit_time"], pa.scalar(at, pa.timestamp("us", "UTC"))))
    if not places.num_rows:
        return None
    newest = places.sort_by([("order_key", "descending"), ("published_at", "descending")]).slice(0, 1).to_pylist()[0]
    rows = pa.table(log.scan(predicate=f"order_key = {newest['order_key']}")).to_pylist()
    return max(rows, key=lambda row: row["published_at"])


def _oldest(log: deltalake.DeltaTable) -> dt.datetime | None:
    times: Any = pa.table(log.scan(columns=["commit_time"]))["commit_time"]
    return pc.min(times).as_py()  # type: ignore[no-any-return]


def _cut(row: Mapping[str, Any]) -> Cut:
    tables = {name: CutTable(name=name, **found) for name, found in json.loads(row["tables"]).items()}
    names = {field.name for field in dataclasses.fields(Cut)} - {"tables"}
    return Cut(**{name: row[name] for name in names}, tables=tables)
