"""Tests what other processes see of a destination: the first batch in flight, the lease holder, and the run lock."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from sluice.cdc_engine import destination_files
from sluice.cdc_engine.destination_files.commit_conflicts import RECORD, ConflictCount, add_commit_conflicts
from sluice.cdc_engine.destination_files.lake_tables import LakeTables
from sluice.cdc_engine.errors import MetaError, NotSharedError
from sluice.cdc_engine.file_lock import FileLock
from sluice.cdc_engine.ha.file_lease import FileLease
from sluice.cdc_engine.records.files import FileRecordStore
from tests.fix_ledgers import FileLedger, full_ledger
from tests.waiting import wait_for


def test_a_destination_that_never_ran_has_nothing_to_show(tmp_path: Path) -> None:
    assert destination_files.head_of_line(tmp_path) is None
    assert destination_files.lease_holder(tmp_path) is None
    assert not destination_files.run_lock_held(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_head_of_the_line_is_the_first_that_waits(tmp_path: Path) -> None:
    FileLedger(tmp_path).update(lambda _: full_ledger())
    head = destination_files.head_of_line(tmp_path)
    assert head is not None
    assert (head.batch_id, head.delivery) == (2, 2)
    assert destination_files.read_ledger(tmp_path).outstanding == full_ledger().outstanding


def test_a_broken_ledger_is_reported_and_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "meta.json").write_text("{")
    with pytest.raises(MetaError):
        destination_files.head_of_line(tmp_path)


def test_conflicts_of_runs_add_up_and_a_broken_count_delays_nothing(tmp_path: Path) -> None:
    shown = ConflictCount(tmp_path)
    shown.look()
    assert shown.count == 0
    for count in (2, 3):
        add_commit_conflicts(tmp_path, count)
    shown.look()
    assert shown.count == 5
    (tmp_path / RECORD).write_text("{")
    shown.look()
    assert shown.count == 5
    with pytest.raises(MetaError, match="remove it"):
        add_commit_conflicts(tmp_path, 1)


def test_the_lease_holder_is_shown(tmp_path: Path) -> None:
    lease = FileLease(tmp_path)
    lease.try_acquire()
    holder = destination_files.lease_holder(tmp_path)
    assert holder is not None
    assert holder.held
    lease.release()


def test_the_run_lock_lets_one_in(tmp_path: Path) -> None:
    with destination_files.run_lock(tmp_path):
        assert destination_files.run_lock_held(tmp_path)
        with (
            pytest.raises(destination_files.RunLockTimeoutError, match="another run of"),
            destination_files.run_lock(tmp_path, 0.01),
        ):
            pytest.fail("two runs held the lock")
    assert not destination_files.run_lock_held(tmp_path)


def test_a_run_waits_for_the_one_before_it(tmp_path: Path) -> None:
    entered = threading.Event()

    def second_run() -> None:
        with destination_files.run_lock(tmp_path, 10.0):
            entered.set()

    with destination_files.run_lock(tmp_path):
        thread = threading.Thread(target=second_run, daemon=True)
        thread.start()
        assert not entered.is_set()
    thread.join(10.0)
    assert entered.is_set()


def test_a_process_that_waits_for_the_run_lock_says_so_until_it_has_it(tmp_path: Path) -> None:
    assert not destination_files.run_lock_wanted(tmp_path)
    taken, free = threading.Event(), threading.Event()

    def wait_for_it() -> None:
        with destination_files.run_lock(tmp_path, 30.0):
            taken.set()
            assert free.wait(30)

    with destination_files.run_lock(tmp_path):
        assert not destination_files.run_lock_wanted(tmp_path), "it did not wait"
        waiting = threading.Thread(target=wait_for_it)
        waiting.start()
        wait_for("it says that it waits", lambda: destination_files.run_lock_wanted(tmp_path))
    assert taken.wait(30)
    wait_for("it waits no more", lambda: not destination_files.run_lock_wanted(tmp_path))
    free.set()
    waiting.join(30)


def test_one_run_drains_at_a_time(tmp_path: Path) -> None:
    assert not destination_files.drain_lock_held(tmp_path)
    with destination_files.drain_lock(tmp_path) as why_not:
        assert not why_not()
        assert destination_files.drain_lock_held(tmp_path)
        assert not destination_files.run_lock_held(tmp_path), "it holds up nobody"
        with destination_files.drain_lock(tmp_path, 0.0) as another:
            assert "already merges its batches" in another()
        assert destination_files.drain_lock_held(tmp_path)
    assert not destination_files.drain_lock_held(tmp_path)


def test_a_run_that_gets_no_answer_of_the_drain_locks_store_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: object) -> bool:
        raise NotSharedError("the lock of shop in ZooKeeper zk1:2181 cannot be taken; Sluice tries again")

    monkeypatch.setattr(FileLock, "try_acquire", away)
    with destination_files.drain_lock(tmp_path) as why_not:
        why = why_not()
    assert "drains: the lock of shop in ZooKeeper zk1:2181 cannot be taken" in why
    assert "already merges its batches" not in why
    assert "check that the ledger's store (`meta` in sluice.yaml) answers" in why


def test_records_of_runs_cover_tables_change_logs_and_histories(tmp_path: Path) -> None:
    records = LakeTables(tmp_path)
    records.keep({"shop.orders": ("current_state", 3)})
    records.keep_side_table("shop.orders", "history", ("versions", 5))
    records.keep_side_table("shop.log", "log", ("changes", 7))
    records.forget("shop.orders", whole=False)
    again = LakeTables(tmp_path)
    assert (again.names, again.tables) == (["shop.log", "shop.orders"], {})
    assert again.side_tables("shop.orders") == {"history": ("versions", 5)}
    again.keep({"shop.orders": ("current_state", 4)})
    assert LakeTables(tmp_path).get("shop.orders") == ("current_state", 4)
    again.forget("shop.orders")
    assert LakeTables(tmp_path).names == ["shop.log"]


UNDIVIDED = {f"shop.t{number}": {"id": f"id-{number}", "version": number} for number in range(9)}


def test_what_an_earlier_version_left_in_one_record_is_read_and_divided_by_the_first_writer(tmp_path: Path) -> None:
    (tmp_path / "lake-tables.json").write_text(json.dumps(UNDIVIDED))
    before = LakeTables(tmp_path)
    assert before.tables == {name: (each["id"], each["version"]) for name, each in UNDIVIDED.items()}
    assert before.side_tables("shop.t1") == {}
    assert [each.name for each in tmp_path.iterdir()] == ["lake-tables.json"], "a reader writes nothing"
    before.forget("shop.t3")
    assert not (tmp_path / "lake-tables.json").exists()
    assert LakeTables(tmp_path).names == sorted(UNDIVIDED.keys() - {"shop.t3"})


@pytest.mark.parametrize("written", range(9))
def test_a_crash_while_a_record_is_divided_leaves_all_that_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    """The crash comes after `written` records, at the latest immediately before the undivided record is removed."""
    (tmp_path / "lake-tables.json").write_text(json.dumps(UNDIVIDED))
    left, write = [written], FileRecordStore.write

    def crash(*args: Any, **given: Any) -> int:
        if not left[0]:
            raise MetaError("killed")
        left[0] -= 1
        return write(*args, **given)

    with monkeypatch.context() as patch:
        patch.setattr(FileRecordStore, "write", crash)
        patch.setattr(FileRecordStore, "remove", crash)
        records = LakeTables(tmp_path)
        with pytest.raises(MetaError, match="killed"):
            records.keep({"shop.new": ("id", 1)})
    again = LakeTables(tmp_path)
    assert again.tables == {name: (each["id"], each["version"]) for name, each in UNDIVIDED.items()}
    again.forget("shop.t3")
    again.keep({"shop.new": ("id", 1)})
    assert LakeTables(tmp_path).names == sorted({*UNDIVIDED, "shop.new"} - {"shop.t3"})


def test_a_record_with_an_unknown_key_is_refused_by_the_key(tmp_path: Path) -> None:
    LakeTables(tmp_path).keep_side_table("shop.orders", "history", ("versions", 5))
    (record,) = (tmp_path / "lake-tables").glob("*.json")
    record.write_text(record.read_text().replace("side_tables", "beside"))
    with pytest.raises(
        MetaError, match=r"json cannot be read \(unknown key beside\): restore the record, or remove it"
    ):
        _ = LakeTables(tmp_path).names


def test_a_copy_of_a_record_under_another_name_is_refused(tmp_path: Path) -> None:
    LakeTables(tmp_path).keep({"shop.orders": ("id", 1)})
    (record,) = (tmp_path / "lake-tables").glob("*.json")
    record.with_name("99.json").write_text(record.read_text())
    with pytest.raises(MetaError, match=r"99\.json has shop\.orders, which belong to other records"):
        _ = LakeTables(tmp_path).names
