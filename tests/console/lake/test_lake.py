"""Tests what the demo reads from its Delta tables: rows, changes, freshness."""

from __future__ import annotations

import datetime as dt
import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from sluice.console.demo.lake import Changes, DemoTable, freshness_seconds, percentile, sum_metrics
from sluice.console.demo.summary import Before

MARKERS = pa.schema([pa.field("id", pa.int64()), pa.field("sent_at", pa.timestamp("us"))])
LOG_FIELDS: list[pa.Field[Any]] = [pa.field("number", pa.int64()), pa.field("_sluice_operation", pa.string())]
LOG = pa.schema(LOG_FIELDS)


def add_markers(path: Path, sent: dict[int, float], visible_at: float) -> None:
    """Adds one Delta version with these markers. The time of its log file is `visible_at`."""
    rows = [
        {"id": marker, "sent_at": dt.datetime.fromtimestamp(at, dt.UTC).replace(tzinfo=None)}
        for marker, at in sent.items()
    ]
    write_deltalake(str(path), pa.Table.from_pylist(rows, schema=MARKERS), mode="append")
    newest = path / "_delta_log" / f"{DeltaTable(str(path)).version():020}.json"
    os.utime(newest, (visible_at, visible_at))


def test_freshness_is_from_the_commit_in_mysql_until_the_version_is_there(tmp_path: Path) -> None:
    path, began = tmp_path / "markers", time.time()
    add_markers(path, {1: began, 2: began + 2}, began + 5)
    add_markers(path, {3: began + 4}, began + 14)
    assert freshness_seconds(path, -1) == pytest.approx([3, 5, 10], abs=0.01)
    assert freshness_seconds(path, 0) == pytest.approx([10], abs=0.01), "an earlier demo's markers are not ours"
    assert freshness_seconds(tmp_path / "nothing", -1) == []


@pytest.mark.parametrize(
    ("values", "share", "wanted"),
    [
        ([], 0.5, None),
        ([1.0], 0.95, 1.0),
        ([1.0, 2.0, 3.0, 4.0], 0.5, 2.0),
        ([float(n) for n in range(1, 101)], 0.95, 95.0),
    ],
)
def test_a_percentile_is_a_value_that_occurred(values: list[float], share: float, wanted: float | None) -> None:
    assert percentile(values, share) == wanted


def test_counts_are_summed_over_the_kinds_of_commits() -> None:
    history: list[dict[str, Any]] = [
        {
            "operationMetrics": {
                "numTargetRowsInserted": "5",
                "numTargetRowsUpdated": "3",
                "numTargetRowsDeleted": "1",
                "numOutputRows": "8",
            }
        },
        {"operationMetrics": {"numOutputRows": "10"}},
        {"operationMetrics": {"numDeletedRows": "4"}},
        {"operation": "CREATE TABLE"},
    ]
    assert sum_metrics(history) == Changes(inserted=15, updated=3, deleted=5)


def test_a_change_log_counts_the_rows_it_replays_to_and_what_came_since(tmp_path: Path) -> None:
    path = tmp_path / "views"
    table = DemoTable(path, keyless=True)
    assert (table.version, table.row_count()) == (-1, 0)

    def add(*operations: str) -> None:
        rows = [{"number": 1, "_sluice_operation": operation} for operation in operations]
        write_deltalake(str(path), pa.Table.from_pylist(rows, schema=LOG), mode="append")

    add("insert", "insert", "insert", "delete", "update_preimage", "update_postimage")
    assert table.row_count() == 2
    before = Before.of(table)
    add("insert", "delete", "delete")
    assert table.row_count() == 1
    assert table.changes(before.version).since(before.changes) == Changes(inserted=1, updated=0, deleted=2)
