"""Tests the table of consistent snapshots of a destination with a thousand tables. Each row is large, so the table is rewritten before it
has too many rows.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.consistent_snapshot import read_consistent_snapshot
from sluice.consistent_snapshot.find import consistent_snapshots_path
from sluice.spark_jobs import consistent_snapshots
from sluice.spark_jobs.consistent_snapshots import PublishedTables, publish_consistent_snapshot
from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.fence import BY_HAND, Fence
from sluice.spark_jobs.table_owner import TableRecord
from tests.consistent_snapshot.test_consistent_snapshot import batch
from tests.scale.fix_many_tables import MANY, table_name

LIMIT, KEPT, AT_ONCE = 20, 12, 4
BATCHES = 2 * LIMIT + 5


def published(lake: Path, last: int, *, first: int = 1, fence: Fence = BY_HAND) -> str:
    """Publishes a snapshot of a thousand tables for each batch from `first` to `last`. Returns the path of the table of snapshots."""
    path = consistent_snapshots_path(str(lake), "shop")
    for end in range(first, last + 1):
        tables = {
            table_name(number): (
                f"/lake/{number}",
                TableRecord(table_id=f"id-{number}", version=end if number < 5 else 1),
            )
            for number in range(MANY)
        }
        publish_consistent_snapshot(batch(end), path, PublishedTables(tables=tables, run="run"), fence)
    return path


@pytest.mark.scale
@pytest.mark.found
def test_rows_beyond_the_bound_are_removed_and_a_rewrite_has_few_of_them_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 27: the rewrite of the table read all rows into memory at once, which took two gigabytes for 3,000 tables."""
    monkeypatch.setattr(consistent_snapshots, "SNAPSHOTS_MAX", LIMIT)
    monkeypatch.setattr(consistent_snapshots, "SNAPSHOTS_KEPT", KEPT)
    monkeypatch.setattr(consistent_snapshots, "ROWS_AT_ONCE", AT_ONCE)
    sizes, write = list[int](), deltalake.write_deltalake

    def seen(path: str, rows: Any, **given: Any) -> None:
        if isinstance(rows, pa.RecordBatchReader):
            made = list(rows)
            sizes.extend(each.num_rows for each in made)
            rows = pa.RecordBatchReader.from_batches(rows.schema, made)
        write(path, rows, **given)

    monkeypatch.setattr(deltalake, "write_deltalake", seen)
    path = published(tmp_path, BATCHES)
    log = deltalake.DeltaTable(path)
    stored: Any = pa.table(log.scan(columns=["order_key"]))["order_key"].to_pylist()
    keys = sorted(stored)
    assert keys == list(range(BATCHES - len(keys) + 1, BATCHES + 1)), "the newest, each of them once"
    assert KEPT < len(keys) < KEPT + LIMIT
    assert len(sizes) > 2
    assert max(sizes) <= AT_ONCE
    newest = read_consistent_snapshot(str(tmp_path), "shop")
    assert (newest.order_key, newest.tables[table_name(0)].version, len(newest.tables)) == (BATCHES, BATCHES, MANY)
    earlier = read_consistent_snapshot(str(tmp_path), "shop", at=_at(keys[0]))
    assert earlier.tables[table_name(4)].version == keys[0]


@pytest.mark.scale
def test_ha_a_run_that_loses_its_lock_while_a_rewrite_reads_commits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consistent_snapshots, "SNAPSHOTS_MAX", LIMIT)
    path, checks = published(tmp_path, LIMIT + 1), list[str]()

    def refusal() -> str:
        """Permits the write before the rows are read, and refuses it afterwards."""
        checks.append("lost" if checks else "")
        return checks[-1]

    with pytest.raises(TableError, match="lost"):
        published(tmp_path, LIMIT + 2, first=LIMIT + 2, fence=Fence(refusal))
    assert checks == ["", "lost"]
    assert deltalake.DeltaTable(path).version() == LIMIT
    published(tmp_path, LIMIT + 2, first=LIMIT + 2)
    assert read_consistent_snapshot(str(tmp_path), "shop").order_key == LIMIT + 2


@pytest.mark.scale
def test_rows_that_are_rewritten_together_are_smaller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consistent_snapshots, "SNAPSHOTS_MAX", LIMIT)
    path = published(tmp_path, LIMIT + 2)
    files = sorted((each for each in Path(path).glob("*.parquet")), key=lambda each: pq.read_metadata(each).num_rows)
    alone, together = files[0], files[-1]
    count = pq.read_metadata(together).num_rows
    assert count > LIMIT
    assert together.stat().st_size < 0.75 * count * alone.stat().st_size


def _at(end: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(int(batch(end).end["time_us"]) / 1e6, dt.UTC)
