"""Tests what `sluice status` says about snapshots whose records cannot be read."""

from __future__ import annotations

import json

import pytest

from sluice.cdc_engine.snapshot.record import SnapshotRecord
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.console.main import app
from tests.console.conftest import RUNNER, Installation


@pytest.mark.found
def test_the_advice_about_a_damaged_record_of_a_snapshot_names_no_table_that_does_not_exist(
    installation: Installation,
) -> None:
    """Defect 1220: if a snapshot's record was damaged, or the record store did not answer, `status` advised `sluice snapshot resume shop
    'its tables'`.
    """
    directory = installation.destination(1)
    SnapshotRecords(directory).begin(SnapshotRecord(snapshot_id="0123456789ab", database="shop", table="orders"))
    (record,) = (directory / "snapshots").glob("*.json")
    record.write_text("{")
    problems = json.loads(RUNNER.invoke(app, ["status", "--json"]).stdout)["problems"]
    (unknown,) = [each for each in problems if str(record) in each]
    assert unknown.startswith(f"shop: its snapshots are unknown: {record} cannot be read")
    assert "its tables" not in unknown
    assert "shop: its snapshots are unknown" in RUNNER.invoke(app, ["status"]).stdout
