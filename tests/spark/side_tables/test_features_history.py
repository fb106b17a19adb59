"""Tests that a history has no Delta feature that its columns do not need, because readers refuse a table with a feature that they do not
know.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.fence import BY_HAND
from sluice.spark_jobs.merging.merge import refuse_other_owner
from sluice.spark_jobs.side_tables.side_table import SideTable
from sluice.spark_jobs.table_owner import FORGETTING, LakeWriter, Owner
from sluice.spark_jobs.tables.delta_table import DeltaTable

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


@pytest.mark.found
def test_a_table_whose_transactions_delta_forgets_is_refused(history: SideTable) -> None:
    """Defect 1191: after a user had set `delta.setTransactionRetentionDuration`, Delta forgot the last order key of a table without changes
    for this time. A change log then got a row `gap` although it had every change, and a repeated batch added rows without a key twice.
    """
    deltalake.DeltaTable(history.path).alter.set_table_properties({FORGETTING: "interval 7 days"})
    log = Path(history.path, "_delta_log")
    before, now = f'"lastUpdated":{int(time.time() * 1000) - 8 * 86_400_000}', log / f"{1:020d}.json"
    now.write_text(re.sub(r'"lastUpdated":\d+', before, now.read_text()))
    assert deltalake.DeltaTable(history.path).transaction_version("app") is None, "16 is forgotten"
    advice = re.escape(f"ALTER TABLE delta.`{history.path}` UNSET TBLPROPERTIES ('{FORGETTING}')")
    with pytest.raises(TableError, match=advice):
        history.open()
    owner = Owner(ledger_id="0123456789ab", destination="shop", table="shop.orders")
    table = DeltaTable("shop.orders", history.path, "app", {})
    table.refresh()
    with pytest.raises(TableError, match=advice):
        refuse_other_owner(table, LakeWriter(owner=owner, epoch=1, delivery=1), None)
