"""Tests that a loss of power loses nothing that was promised: every writer has synced contents and names when it returns.

If any sync is removed from `durable_files` or from a writer, a test here fails.
"""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import uuid
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.batch_manifest.values import StagedQuarantine
from sluice.cdc_engine.contracts import Block, RowEventKind
from sluice.cdc_engine.durable_files import keep_file, rename, sync_files
from sluice.cdc_engine.meta.stored_ledger import LEDGER as LEDGER_FILE
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.staging import stage
from sluice.cdc_engine.store.prepared import PreparedFiles
from sluice.cdc_engine.table_meta.history.kept.repository import HistoryRecord, RecordKind, SchemaRepository
from sluice.spark_jobs import durable_lake
from sluice.spark_jobs.durable_lake import AS_B85, sync_commits, vector_file
from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.fence import BY_HAND
from sluice.spark_jobs.quarantine import append as quarantine
from sluice.spark_jobs.quarantine.append import append_quarantine
from sluice.spark_jobs.staged_batch import StagedBatch
from tests.binlog.rows.event_bytes import ORDERS
from tests.durability.disk import Disk
from tests.fix_ledgers import FileLedger
from tests.staging.test_staging import batch, rows_block, whole

POSITION = Position(epoch=1, file="binlog.000002", offset=400)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(tmp_path, monkeypatch)


def lost(disk: Disk, folder: Path) -> list[str]:
    """Returns what a loss of power would remove from a folder."""
    files = [each for each in folder.rglob("*") if each.is_file()]
    assert files
    return [why for each in files for why in disk.loses(each)]


def test_fault_the_files_of_a_batch_are_synced_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"x")
    both = threading.Barrier(2)
    monkeypatch.setattr(os, "fsync", lambda _: both.wait(30))
    sync_files(tmp_path)


def test_fault_a_file_that_cannot_be_synced_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: int) -> None:
        raise OSError("no space left")

    (tmp_path / "a").write_bytes(b"x")
    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="no space left"):
        sync_files(tmp_path)


def test_fault_the_disk_of_these_tests_forgets(tmp_path: Path, disk: Disk) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "file").write_bytes(b"x")
    assert lost(disk, tmp_path) == [
        "the content of file is not synced",
        "the name file is not synced in new",
        f"the name new is not synced in {tmp_path.name}",
    ]


def test_fault_a_file_that_is_kept_stays_and_so_do_the_folders_made_for_it(tmp_path: Path, disk: Disk) -> None:
    kept = tmp_path / "data" / "engine" / "shop" / "kept.json"
    for content in ("first", "second"):
        keep_file(kept, content)
        assert disk.loses(kept) == []
    rename(kept, kept.with_name("renamed.json"))
    assert disk.loses(kept.with_name("renamed.json")) == []


def test_fault_the_ledger_stays(tmp_path: Path, disk: Disk) -> None:
    meta = FileLedger(tmp_path / "engine" / "shop")
    for offset in (400, 500):
        meta.update(lambda ledger, offset=offset: ledger.set_cursor(dataclasses.replace(POSITION, offset=offset)))  # type: ignore[misc]
        assert disk.loses(tmp_path / "engine" / "shop" / LEDGER_FILE) == []


def test_fault_the_schema_history_stays_record_by_record(tmp_path: Path, disk: Disk) -> None:
    path = tmp_path / "engine" / "shop" / "schema.jsonl"
    history = SchemaRepository(path)
    for offset in (400, 500):
        record = HistoryRecord(kind=RecordKind.REWIND, position=dataclasses.replace(POSITION, offset=offset))
        history.append([record])
        assert disk.loses(path) == []
    history.replace([record])
    assert disk.loses(path) == []


def test_fault_what_was_prepared_stays(tmp_path: Path, disk: Disk) -> None:
    folder = tmp_path / "engine" / "prepared"
    records = PreparedFiles(folder, lambda: POSITION)
    records.begin()
    records.record(b"rows")
    records.prepare("x", POSITION.order_key)
    assert lost(disk, folder) == []


def test_fault_a_staged_batch_stays_before_the_ledger_speaks_of_it(tmp_path: Path, disk: Disk) -> None:
    block: Block = rows_block((ORDERS, RowEventKind.INSERT, [(1, 10, "a"), (2, 20, "b")]))
    staging = tmp_path / "staging"
    staged = stage(batch(whole(block)), "shop", 1, staging)
    assert len(list(staged.path.iterdir())) == 2
    # This writes the next record of the ledger, which is next to the folder.
    FileLedger(tmp_path).update(lambda ledger: ledger.set_cursor(POSITION))
    assert lost(disk, staging) == []


def rows(*numbers: int) -> pa.Table:
    return pa.table({"id": pa.array(numbers, pa.int64())})


def test_fault_the_commits_of_a_local_table_stay_before_their_batch_is_acked(tmp_path: Path, disk: Disk) -> None:
    path = tmp_path / "lake" / "shop" / "orders"
    deltalake.write_deltalake(str(path), rows(1, 2))
    assert lost(disk, path)
    assert sync_commits(str(path), -1, 0) > 0
    assert lost(disk, path) == []
    deltalake.write_deltalake(str(path), rows(3), mode="append", partition_by=None)
    table = deltalake.DeltaTable(str(path))
    table.create_checkpoint()
    for extra in (f".{1:020d}.json.crc", f"{1:020d}.crc", f".{1:020d}.crc.crc"):
        (path / "_delta_log" / extra).write_bytes(b"of Hadoop, of Delta, of Hadoop")
    sync_commits(f"file://{path}", 0, 1)
    assert lost(disk, path) == []


def test_fault_a_commit_whose_statistics_have_ends_of_lines_stays(tmp_path: Path, disk: Disk) -> None:
    """JSON keeps U+2028 and U+0085 unescaped, and Python also treats them as ends of lines. So a merge of such a text was never acked."""
    path = tmp_path / "lake" / "notes"
    deltalake.write_deltalake(str(path), pa.table({"note": ["\u2028 first", "\x85 then"]}))
    sync_commits(str(path), -1, 0)
    assert lost(disk, path) == []


@pytest.mark.found
def test_fault_the_sidecars_of_a_checkpoint_stay(tmp_path: Path, disk: Disk) -> None:
    """Defect 1054: a checkpoint of version 2, to which a user had switched a table, was synced without the files to which it refers."""
    path = tmp_path / "lake" / "shop" / "orders"
    for number in (1, 2):
        deltalake.write_deltalake(str(path), rows(number), mode="append")
        sync_commits(str(path), number - 2, number - 1)
    deltalake.write_deltalake(str(path), rows(3), mode="append")
    log = path / "_delta_log"
    (log / "_sidecars").mkdir()
    for file in ("_sidecars/a.parquet", "_sidecars/.a.parquet.crc", f"{2:020d}.checkpoint.b.parquet"):
        (log / file).write_bytes(b"of Delta, of Hadoop, of Delta")
    (log / "_last_checkpoint").write_text('{"version": 2, "v2Checkpoint": {"path": "b"}}')
    sync_commits(str(path), 1, 2)
    assert lost(disk, path) == []


def test_fault_what_an_earlier_try_committed_stays_too(tmp_path: Path, disk: Disk) -> None:
    """A run was killed after its commit and before it had synced the commit. The next run has nothing left to merge."""
    path = tmp_path / "lake" / "orders"
    for number in (1, 2):
        deltalake.write_deltalake(str(path), rows(number), mode="append")
    sync_commits(str(path), 1, 1)
    assert lost(disk, path), "nothing is new"
    sync_commits(str(path), 1, 1, since_seconds=1.0)
    assert lost(disk, path) == []


def quarantined(directory: Path, *order_keys: int) -> StagedBatch:
    """Returns a staged batch that has only values for the quarantine."""
    directory.mkdir(parents=True)
    table = pa.table(
        {"database": ["shop"] * len(order_keys), "table": ["orders"] * len(order_keys), "order_key": order_keys}
    )
    pq.write_table(table, directory / "quarantine.parquet")
    (directory / "manifest.json").touch()
    return StagedBatch(
        directory=directory,
        destination="shop",
        ledger_id="0123456789ab",
        epoch=1,
        delivery=1,
        end_order_key=1,
        start={},
        end={},
        tables=(),
        quarantine=StagedQuarantine(
            file=directory / "quarantine.parquet", size_bytes=0, rows=len(order_keys), last_order_key=max(order_keys)
        ),
    )


def test_fault_values_in_quarantine_stay_before_their_batch_is_acked(tmp_path: Path, disk: Disk) -> None:
    path = tmp_path / "lake" / "_sluice_quarantine" / "shop"
    for number in (1, 2):
        assert append_quarantine(quarantined(tmp_path / f"batch-{number}", number), str(path), {}, BY_HAND) == 1
        assert lost(disk, path) == []


def test_fault_values_in_quarantine_that_an_earlier_try_committed_stay_too(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, batch = tmp_path / "lake" / "_sluice_quarantine" / "shop", quarantined(tmp_path / "batch", 1)
    with monkeypatch.context() as killed:
        killed.setattr(quarantine, "sync_commits", lambda *_, **__: 0)
        append_quarantine(batch, str(path), {}, BY_HAND)
    assert lost(disk, path)
    assert append_quarantine(batch, str(path), {}, BY_HAND) == 0
    assert lost(disk, path) == []


@pytest.mark.found
def test_fault_values_in_quarantine_that_another_commit_replaced_are_appended_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 22: the commit of the quarantine was not read back, so a batch was acked although its values were not in the quarantine."""
    path, append = tmp_path / "lake" / "_sluice_quarantine" / "shop", quarantine._append
    append_quarantine(quarantined(tmp_path / "first", 1), str(path), {}, BY_HAND)

    def written_over(*given: Any) -> None:
        append(*given)
        (path / "_delta_log" / f"{1:020d}.json").write_text(json.dumps({"commitInfo": {"operation": "OPTIMIZE"}}))

    batch = quarantined(tmp_path / "second", 2, 3)
    with monkeypatch.context() as patch:
        patch.setattr(quarantine, "_append", written_over)
        with pytest.raises(TableError, match="does not have the rows that this run committed, because another commit"):
            append_quarantine(batch, str(path), {}, BY_HAND)
    assert append_quarantine(batch, str(path), {}, BY_HAND) == len((2, 3))
    rows: Any = pa.table(deltalake.DeltaTable(path).to_pyarrow_dataset().to_table())
    assert set(rows["order_key"].to_pylist()) == {1, 2, 3}
    assert rows.num_rows == len((1, 2, 3))


def test_fault_a_deletion_vector_stays(tmp_path: Path, disk: Disk) -> None:
    """The file name follows Delta's protocol: a random name of a folder, then a UUID in Z85."""
    assert vector_file("ab^-aqEH.-t@S}K{vb[*k^") == "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    log = tmp_path / "_delta_log"
    log.mkdir()
    vector = tmp_path / f"deletion_vector_{uuid.UUID(int=0)}.bin"
    for file in (vector, tmp_path / "part one.parquet"):
        file.write_bytes(b"x")
    location = "0" * 20
    add = {"path": "part%20one.parquet", "deletionVector": {"storageType": "u", "pathOrInlineDv": location}}
    (log / f"{0:020d}.json").write_text(json.dumps({"commitInfo": {}}) + "\n" + json.dumps({"add": add}))
    assert len(AS_B85) == 85
    sync_commits(str(tmp_path), -1, 0)
    assert lost(disk, tmp_path) == []


def test_fault_a_lake_elsewhere_is_its_keeper_s_business(tmp_path: Path) -> None:
    assert sync_commits("s3://bucket/lake/orders", -1, 5) == 0
    assert sync_commits(str(tmp_path / "not" / "mounted"), -1, 5) == 0


def test_fault_a_first_commit_syncs_the_folders_above_its_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "above" / "lake" / "shop" / "orders"
    deltalake.write_deltalake(str(path), rows(1))
    synced: list[Path] = []
    monkeypatch.setattr(durable_lake, "_sync", synced.append)
    sync_commits(str(path), -1, 0)
    above = [folder for folder in path.parents if folder in synced]
    assert above == [tmp_path / "above" / "lake" / "shop", tmp_path / "above" / "lake", tmp_path / "above"]


@pytest.mark.found
def test_fault_the_name_of_a_table_that_is_made_again_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 54: a table that was removed and created again could have the same inode. Then its name was not synced, and a loss of power
    could remove the table.
    """
    lake, synced = tmp_path / "lake", list[Path]()
    deltalake.write_deltalake(lake / "orders", pa.table({"id": [1]}))
    monkeypatch.setattr(durable_lake, "sync", synced.append)
    for _ in range(2):
        durable_lake.sync_names(str(lake / "orders"), 0)
    assert synced == [lake, tmp_path, tmp_path.parent, lake]
