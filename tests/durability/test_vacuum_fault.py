"""Tests a VACUUM without retention that removes files of a merge before their commit. The sync after the commit reports this, so the batch
is not acked.
"""

from __future__ import annotations

from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from sluice.spark_jobs.durable_lake import sync_commits


@pytest.fixture
def table(tmp_path: Path) -> deltalake.DeltaTable:
    for number in range(2):
        deltalake.write_deltalake(tmp_path, pa.table({"id": [number]}), mode="append")
    return deltalake.DeltaTable(tmp_path)


def test_fault_a_file_that_a_vacuum_took_from_a_merge_is_reported(table: deltalake.DeltaTable, tmp_path: Path) -> None:
    assert sync_commits(str(tmp_path), 0, 1) > 0
    for path in tmp_path.glob("*.parquet"):
        path.unlink()
    with pytest.raises(FileNotFoundError, match="sluice snapshot start"):
        sync_commits(str(tmp_path), 0, 1)


def test_fault_a_file_that_the_table_no_longer_needs_may_be_gone(table: deltalake.DeltaTable, tmp_path: Path) -> None:
    table.optimize.compact()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert len(list(tmp_path.glob("*.parquet"))) == 1
    assert sync_commits(str(tmp_path), 0, 1) > 0
    assert sync_commits(str(tmp_path), -1, 2) > 0
