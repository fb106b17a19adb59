"""The records of snapshots in files: what a person who looks at them may leave there."""

from __future__ import annotations

import shutil
from pathlib import Path

from sluice.cdc_engine.snapshot.record import SnapshotRecord
from sluice.cdc_engine.snapshot.records import FOLDER, SnapshotRecords, digest_of


def test_a_copy_of_a_record_is_no_second_snapshot_of_its_table(tmp_path: Path) -> None:
    """It would stay open when the snapshot has ended, and runs would buffer the table's changes for ever."""
    records = SnapshotRecords(tmp_path)
    record = SnapshotRecord(snapshot_id="0123456789ab", database="shop", table="orders")
    records.begin(record)
    file = tmp_path / FOLDER / f"{digest_of(record.name)}.json"
    shutil.copy(file, file.with_name("before.json"))
    shutil.copy(file, file.with_name(f"{file.name}.bak"))
    assert records.all() == (record,)
