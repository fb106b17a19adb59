"""Tests that changes of another program to an idle Delta table are found in the table's log, without Spark."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.table_owner import Owner, TableRecord
from sluice.spark_jobs.tables.lake_look import COMMITS_MAX, LakeLook

OWNER = Owner(ledger_id="0123456789ab", destination="shop", table="shop.orders")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "lake" / "orders"
    for number in range(4):
        deltalake.write_deltalake(str(path), pa.table({"id": [number]}), mode="append")
    return path


def record(path: Path) -> TableRecord:
    log = deltalake.DeltaTable(str(path))
    return TableRecord(table_id=str(log.metadata().id), version=log.version())


def trouble(path: Path, left: TableRecord) -> str:
    return LakeLook({}).trouble(OWNER, str(path), left)


def test_fault_a_table_as_it_was_left_is_no_trouble(table: Path) -> None:
    assert trouble(table, record(table)) == ""


def test_fault_a_user_who_optimizes_vacuums_and_describes_is_no_trouble(table: Path) -> None:
    left, log = record(table), deltalake.DeltaTable(str(table))
    log.optimize.compact()
    log.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    log.alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"})
    assert record(table).version > left.version
    assert trouble(table, left) == ""


def test_fault_a_merge_that_is_under_way_is_no_trouble(table: Path) -> None:
    left = record(table)
    deltalake.write_deltalake(str(table), pa.table({"id": [9]}), mode="append")
    assert trouble(table, left) == ""


def test_fault_a_restored_table_is_named_until_all_is_back(table: Path) -> None:
    left, log = record(table), deltalake.DeltaTable(str(table))
    look = LakeLook({})
    assert look.trouble(OWNER, str(table), left) == ""
    log.restore(1)
    found = look.trouble(OWNER, str(table), left)
    assert "TABLE_RESTORED" in found
    assert "`sluice lake accept shop shop.orders`" in found
    log.update_incremental()
    log.restore(left.version)
    assert look.trouble(OWNER, str(table), left) == ""


def test_fault_a_rewritten_table_is_named(table: Path) -> None:
    left = record(table)
    deltalake.write_deltalake(str(table), pa.table({"id": [1]}), mode="overwrite")
    assert "TABLE_RESTORED" in trouble(table, left)


def test_fault_a_folder_that_is_gone_is_named_until_it_is_back(table: Path) -> None:
    left, look = record(table), LakeLook({})
    assert look.trouble(OWNER, str(table), left) == ""
    table.rename(table.with_name("away"))
    assert "TABLE_MISSING" in look.trouble(OWNER, str(table), left)
    table.with_name("away").rename(table)
    assert look.trouble(OWNER, str(table), left) == ""


def test_fault_another_table_at_its_path_is_named_at_the_same_version_too(table: Path) -> None:
    left, look = record(table), LakeLook({})
    assert look.trouble(OWNER, str(table), left) == ""
    shutil.rmtree(table)
    for number in range(4):
        deltalake.write_deltalake(str(table), pa.table({"id": [number]}), mode="append")
    assert record(table).version == left.version
    assert "TABLE_REPLACED" in look.trouble(OWNER, str(table), left)


def test_fault_an_older_copy_at_its_path_is_named(table: Path) -> None:
    left = record(table)
    (table / "_delta_log" / f"{left.version:020d}.json").unlink()
    assert "TABLE_RESTORED" in trouble(table, left)


def test_fault_a_log_that_cannot_be_read_is_an_error_with_its_path(table: Path) -> None:
    left = record(table)
    (table / "_delta_log" / f"{left.version:020d}.json").write_text("{")
    with pytest.raises(TableError, match="cannot be read"):
        trouble(table, left)


def test_fault_an_unchanged_table_is_not_read_again(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left, look = record(table), LakeLook({})
    look.trouble(OWNER, str(table), left)
    monkeypatch.delattr(deltalake, "DeltaTable")
    assert look.trouble(OWNER, str(table), left) == ""
    monkeypatch.undo()
    deltalake.DeltaTable(str(table)).restore(1)
    assert "TABLE_RESTORED" in look.trouble(OWNER, str(table), left)


def test_fault_a_table_that_only_runs_changed_is_not_opened(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look = LakeLook({})
    for number in range(2 * COMMITS_MAX):
        left = append(table, number)
        with monkeypatch.context() as patch:
            patch.delattr(deltalake, "DeltaTable")
            assert look.trouble(OWNER, str(table), left) == ""
    deltalake.DeltaTable(str(table)).restore(1)
    assert "TABLE_RESTORED" in look.trouble(OWNER, str(table), left)


def test_fault_a_table_with_many_commits_since_its_id_is_opened(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = [append(table, number) for number in range(COMMITS_MAX)][-1]
    assert trouble(table, left) == ""
    monkeypatch.delattr(deltalake, "DeltaTable")
    with pytest.raises(AttributeError, match="DeltaTable"):
        trouble(table, left)


def test_fault_another_table_at_its_path_that_runs_seem_to_have_changed_is_named(table: Path) -> None:
    look, left = LakeLook({}), record(table)
    assert look.trouble(OWNER, str(table), left) == ""
    shutil.rmtree(table)
    for number in range(4):
        deltalake.write_deltalake(str(table), pa.table({"id": [number]}), mode="append")
    there = append(table, 9)
    assert "TABLE_REPLACED" in look.trouble(
        OWNER, str(table), TableRecord(table_id=left.table_id, version=there.version)
    )


def append(path: Path, number: int) -> TableRecord:
    """Appends a row as a run does, and returns the record that the run stores."""
    deltalake.write_deltalake(str(path), pa.table({"id": [number]}), mode="append")
    return record(path)


@pytest.mark.found
def test_fault_each_shard_of_a_restored_table_is_named(table: Path) -> None:
    """Defect 1204: after `lake accept --as-it-is` of two shards, a finding about the first shard was also shown for the second one."""
    look, left, other = LakeLook({}), record(table), dataclasses.replace(OWNER, table="shop_2.orders")
    deltalake.DeltaTable(str(table)).restore(1)
    for owner in (OWNER, other, OWNER):
        found = look.trouble(owner, str(table), left)
        assert found.startswith(f"{owner.table} is TABLE_RESTORED")
        assert f"`sluice lake accept shop {owner.table}`" in found
