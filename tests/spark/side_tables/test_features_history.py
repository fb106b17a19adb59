"""Tests that a history has no Delta feature that its columns do not need, because readers refuse a table with a feature that they do not
know.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from sluice.spark_jobs.fence import BY_HAND
from sluice.spark_jobs.side_tables.side_table import SideTable

LOCAL_TIMES = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us"))])


@pytest.fixture
def history(tmp_path: Path) -> SideTable:
    """Creates a table with a timestamp without time zone, and one commit without rows."""
    table = SideTable("shop.orders", str(tmp_path / "history"), "app", {}, fence=BY_HAND)
    table.make(LOCAL_TIMES, {"sluice.key": '["id"]'}, "Every version of every row.")
    table.mark(16, "{}")
    return table


def test_a_commit_without_rows_adds_no_feature_and_changes_nothing_else(history: SideTable) -> None:
    assert (history.version, history.applied) == (1, 16)
    assert history.log.protocol().reader_features == ["timestampNtz"]
    described = history.log.metadata()
    assert described.description == "Every version of every row."
    assert described.configuration["sluice.key"] == '["id"]'
    history.mark(16, "{}")
    assert history.open().version == 1, "the same order key again"
