"""Reads row counts and markers from the demo's Delta tables with deltalake, without Spark. The live view and the summary use this
module.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from sluice.equality.table_plan import OPERATION, SIGNS
from sluice.spark_jobs.tables.commit_record import read_commit, row_counts

# The operation of a row in a change log → the field of `Changes` that counts the operation.
LOGGED = {"insert": "inserted", "update_postimage": "updated", "delete": "deleted"}


@dataclasses.dataclass(frozen=True)
class Changes:
    """The numbers of rows that commits inserted, updated and deleted in a Delta table. A merge folds all changes of a key within a batch,
    so these changes count as one.
    """

    inserted: int = 0
    updated: int = 0
    deleted: int = 0

    def since(self, before: Changes) -> Changes:
        return Changes(self.inserted - before.inserted, self.updated - before.updated, self.deleted - before.deleted)


class DemoTable:
    """One Delta table of the demo. Rows are counted again only when the table has a new version. With `keyless`, the source table has no
    key, and the Delta table is a change log.
    """

    def __init__(self, path: Path, *, keyless: bool) -> None:
        self.path, self.keyless = path, keyless
        self._table: DeltaTable | None = None
        self._counted_version = -1
        self._operations: Counter[str] = Counter()

    @property
    def version(self) -> int:
        """The newest version, or -1 while the table does not exist."""
        try:
            if self._table is None:
                self._table = DeltaTable(str(self.path))
            else:
                self._table.update_incremental()
        except TableNotFoundError:
            return -1
        return self._table.version()

    def row_count(self) -> int:
        """Returns the number of rows in the lake, or 0 while the table does not exist. For a change log, which has a row for each change,
        computes how many rows the source table has after all these changes.
        """
        operations = self._count()
        return sum(SIGNS[name] * count for name, count in operations.items()) if self.keyless else operations.total()

    def changes(self, after_version: int = -1) -> Changes:
        """Returns the changes of all commits whose version is greater than `after_version`. By default, this means all commits. For a
        change log, always returns all changes, and ignores `after_version`. Returns no changes while the table does not exist.
        """
        if self.keyless:
            operations = self._count()
            return Changes(**{field: operations[name] for name, field in LOGGED.items()})
        if self.version < 0 or self._table is None:
            return Changes()
        history = [commit for commit in self._table.history() if commit["version"] > after_version]
        return sum_metrics(history)

    def _count(self) -> Counter[str]:
        version = self.version
        if version != self._counted_version and self._table is not None:
            self._operations, self._counted_version = Counter(), version
            for batch in pa.RecordBatchReader.from_stream(self._table.scan(columns=[OPERATION])):
                counted: Any = pc.value_counts(batch.column(0))
                self._operations.update({str(each["values"]): int(each["counts"]) for each in counted.to_pylist()})
        return self._operations


def sum_metrics(history: list[dict[str, Any]]) -> Changes:
    """Returns how many rows the given Delta commits inserted, updated and deleted together, according to their metrics."""
    totals: Counter[str] = Counter()
    for commit in history:
        totals.update(row_counts(commit.get("operationMetrics") or {}))
    return Changes(totals["rows_inserted"], totals["rows_updated"], totals["rows_deleted"])


@dataclasses.dataclass(frozen=True)
class Marked:
    """A marker row. `sent` is the time at which MySQL wrote the row. `shown` is the time from which readers of the lake see the row. Both
    times are in seconds since 1970. `delivery` is the number of the delivery that merged the row.
    """

    sent: float
    shown: float
    delivery: int


def markers_shown(path: Path, after_version: int) -> list[Marked]:
    """Returns the marker rows that Delta versions after `after_version` added, in the order of these versions. The traffic writes a marker
    every two seconds.

    `sent` is the marker's `sent_at`, by MySQL's clock. `shown` is the time at which the first Delta version with the marker was written to
    `_delta_log`, because every reader sees the marker from then on.
    """
    newest = DemoTable(path, keyless=False).version
    if newest < 0:
        return []
    deliveries = {commit["version"]: read_commit(commit).delivery for commit in DeltaTable(str(path)).history()}
    found: list[Marked] = []
    seen = _markers(path, after_version) if after_version >= 0 else {}
    for version in range(after_version + 1, newest + 1):
        committed = (path / "_delta_log" / f"{version:020}.json").stat().st_mtime
        present = _markers(path, version)
        delivery = deliveries.get(version, 0)
        found += [Marked(sent, committed, delivery) for marker, sent in present.items() if marker not in seen]
        seen = present
    return found


def freshness_seconds(path: Path, after_version: int) -> list[float]:
    """Returns the seconds from the commit of each marker row in MySQL until the row was visible in the lake, in ascending order."""
    return sorted(each.shown - each.sent for each in markers_shown(path, after_version))


def percentile(ascending: list[float], share: float) -> float | None:
    """Returns a percentile of `ascending`, values in ascending order. `share` is the percentile as a number from 0 to 1, for example 0.95.
    The result is the smallest value v such that at least this share of all values is at most v, rounded to two decimals. Returns None if
    there are no values.
    """
    if not ascending:
        return None
    return round(ascending[min(len(ascending) - 1, max(0, -(-len(ascending) * int(share * 100) // 100) - 1))], 2)


def _markers(path: Path, version: int) -> dict[int, float]:
    """Returns the marker rows in one Delta version: id of the marker → when MySQL wrote it, in seconds since 1970. Returns {} if this
    version does not have the column `sent_at` yet.
    """
    table = DeltaTable(str(path), version=version)
    if "sent_at" not in {field.name for field in table.schema().fields}:
        return {}
    found: dict[int, float] = {}
    for batch in pa.RecordBatchReader.from_stream(table.scan(columns=["id", "sent_at"])):
        markers, sent = (column.to_pylist() for column in batch.columns)
        found.update((int(marker), _utc_seconds(at)) for marker, at in zip(markers, sent, strict=True) if marker and at)
    return found


def _utc_seconds(moment: Any) -> float:
    return float(moment.replace(tzinfo=dt.UTC).timestamp())
