"""Tests that values are appended to a quarantine table that its users have changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from deltalake.schema import PrimitiveType

from sluice.spark_jobs.fence import BY_HAND
from sluice.spark_jobs.quarantine.append import append_quarantine
from tests.durability.test_power_fault import quarantined


@pytest.mark.found
def test_a_column_that_users_added_to_the_quarantine_stops_no_batch(tmp_path: Path) -> None:
    """Defect 1051: after a user had added a column for notes, the next value for the quarantine failed all tables of its batch, again and
    again, with the advice to check the disk.
    """
    path = str(tmp_path / "quarantine")
    append_quarantine(quarantined(tmp_path / "first", 1), path, {}, BY_HAND)
    deltalake.DeltaTable(path).alter.add_columns([deltalake.Field("note", PrimitiveType("string"))])
    deltalake.DeltaTable(path).update({"note": "'seen'"})
    assert append_quarantine(quarantined(tmp_path / "second", 2), path, {}, BY_HAND) == 1
    rows: Any = pa.table(deltalake.DeltaTable(path).to_pyarrow_table())
    assert sorted(zip(*rows.select(["order_key", "note"]).to_pydict().values(), strict=True)) == [
        (1, "seen"),
        (2, None),
    ]
