"""Tests what a merge reports about its cost: rows that were changed or rewritten unchanged, files that were scanned or skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.tables.delta_table import DeltaTable
from tests.spark.side_tables.fix_side_tables import LoggedTable, changes, insert, update


def test_a_merge_reports_what_it_changed_and_what_it_rewrote_history(tmp_path: Path) -> None:
    lake = LoggedTable(tmp_path)
    first = lake.merge(lake.stage(changes([insert(key, 16) for key in range(10)])))
    assert (first.rows_inserted, first.rows_copied, first.files_scanned, first.files_pruned) == (10, 0, 0, 0)
    lake.merge(lake.stage(changes([insert(key, 32) for key in range(100, 105)])))
    merged = lake.merge(lake.stage(changes([update(101, 48), update(102, 48)])))
    assert (merged.rows_updated, merged.rows_copied) == (2, 3)
    assert (merged.files_scanned, merged.files_pruned) == (1, 1)


def test_files_of_a_table_that_is_not_captured_are_refused_with_the_reason(tmp_path: Path) -> None:
    table = DeltaTable("shop.orders", str(tmp_path / "orders"), "app", {})
    table.refresh()
    with pytest.raises(TableError, match=r"shop\.orders: no Delta table exists at .*orders"):
        table.scanned("id", 1, 2)
