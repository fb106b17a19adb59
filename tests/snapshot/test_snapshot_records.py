"""Tests the records of snapshots in files, also if a person has left copies next to them."""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.cdc_engine.snapshot.record import SnapshotRecord
from sluice.cdc_engine.snapshot.records import FOLDER, SnapshotRecords, digest_of
from sluice.orchestration.run.spark_merge import OpenSnapshots


def test_a_copy_of_a_record_is_no_second_snapshot_of_its_table(tmp_path: Path) -> None:
    """If the copy counted as a snapshot, it would stay open after the snapshot has ended. Runs would then buffer the table's changes
    forever.
    """
    records = SnapshotRecords(tmp_path)
    record = SnapshotRecord(snapshot_id="0123456789ab", database="shop", table="orders")
    records.begin(record)
    file = tmp_path / FOLDER / f"{digest_of(record.name)}.json"
    shutil.copy(file, file.with_name("before.json"))
    shutil.copy(file, file.with_name(f"{file.name}.bak"))
    assert records.all() == (record,)


@pytest.mark.found
def test_restarts_of_a_paused_snapshot_leave_no_files_of_earlier_ones(tmp_path: Path) -> None:
    """Defect 15: the files of changes that were buffered before a restart stayed until the rows were read again. So their number had no
    limit while the snapshot was paused.
    """
    records = SnapshotRecords(tmp_path)
    record = SnapshotRecord(snapshot_id="0123456789ab", database="shop", table="orders", paused=True)
    records.begin(record)
    chunks = records.chunks(record).folder
    chunks.mkdir(parents=True)
    holds = OpenSnapshots(records)
    for key in range(1, 6):
        buffered = holds.get(record.name)
        assert buffered is not None
        for files in (buffered.files, buffered.cascades):
            files.folder.mkdir(parents=True)
            (files.folder / "1.parquet").write_bytes(b"x")
        if key % 2:
            holds.again(record.name, key, "the table was truncated")
        else:
            holds.cascades_unseen(record.name, key, "foreign keys changed rows of the table", frozenset())
        assert [path.name for path in chunks.parent.iterdir()] == [chunks.name], "a run may still write chunks"


@pytest.mark.scale
@pytest.mark.parametrize(
    "end", [SnapshotRecord.canceled, lambda record: record.failed("no right")], ids=["canceled", "failed"]
)
def test_files_of_other_generations_are_removed_and_all_files_when_a_snapshot_ends(
    tmp_path: Path, end: Callable[[SnapshotRecord], SnapshotRecord]
) -> None:
    records, name = SnapshotRecords(tmp_path), "shop.orders"
    record = SnapshotRecord(snapshot_id="0123456789ab", database="shop", table="orders")
    records.begin(record)
    kept = {each.folder for each in (records.changes(record), records.cascades(record), records.chunks(record))}
    home = next(iter(kept)).parent
    for folder in (*kept, home / "older-chunks-0", home / "older-changes-4", home / "older-cascades-4"):
        folder.mkdir(parents=True)
        (folder / "rows.parquet").write_bytes(b"rows")
    records.sweep(name)
    assert set(home.iterdir()) == kept
    ended = records.update(name, end)
    records.sweep(name)
    assert set(home.iterdir()) == (kept if ended.is_open else set())


def ended(record: SnapshotRecord) -> SnapshotRecord:
    return record.canceled()


@pytest.mark.scale
def test_ended_snapshots_of_tables_that_were_dropped_are_forgotten_with_their_files(tmp_path: Path) -> None:
    records = SnapshotRecords(tmp_path)
    for name in ("kept", "dropped", "open", "young"):
        record = SnapshotRecord(snapshot_id="0123456789ab", database="shop", table=name)
        records.begin(record)
        folder = records.chunks(record).folder
        folder.mkdir(parents=True)
        (folder / "rows.parquet").write_bytes(b"rows")
        if name != "open":
            records.update(record.name, ended)
    later, captured = time.time() + 60, {"shop.kept"}
    assert records.forget_ended({*captured, "shop.dropped"}, later - 3600) == (), "a run may still remove its files"
    assert records.forget_ended({*captured, "shop.young"}, later) == ("shop.dropped",)
    assert {each.name for each in records.all()} == {"shop.kept", "shop.open", "shop.young"}
    assert not (tmp_path / FOLDER / digest_of("shop.dropped")).exists()
    assert (tmp_path / FOLDER / digest_of("shop.open")).exists()
    assert records.forget_ended({*captured, "shop.young"}, later) == ()
    records.begin(SnapshotRecord(snapshot_id="0123456789cd", database="shop", table="dropped"))
    assert {each.name for each in records.all() if each.is_open} == {"shop.open", "shop.dropped"}


def test_a_snapshot_that_is_requested_meanwhile_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = SnapshotRecords(tmp_path)
    record = SnapshotRecord(snapshot_id="0123456789ab", database="shop", table="orders")
    records.begin(record)
    records.update(record.name, ended)
    again, sweep = dataclasses.replace(record, snapshot_id="0123456789cd"), SnapshotRecords.sweep

    def requested(self: SnapshotRecords, name: str) -> None:
        sweep(self, name)
        monkeypatch.undo()
        SnapshotRecords(tmp_path).begin(again)

    monkeypatch.setattr(SnapshotRecords, "sweep", requested)
    assert records.forget_ended(set(), time.time() + 60) == ()
    assert records.all() == (again,)
