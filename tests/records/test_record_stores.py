"""Tests every record store with one suite, in files, in memory and on real servers."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import multiprocessing
import os
import threading
import time
from pathlib import Path

import pytest

from sluice.cdc_engine import durable_files
from sluice.cdc_engine.acts.stopped_destination import stopped_destination
from sluice.cdc_engine.contracts import DestinationDir, LedgerLocation
from sluice.cdc_engine.errors import MetaError, StaleWriteError
from sluice.cdc_engine.file_lock import FileLock
from sluice.cdc_engine.ha.beat_lock import LockClaim
from sluice.cdc_engine.ha.leases import LEASE
from sluice.cdc_engine.meta.stored_ledger import LEDGER, read_stored_ledger
from sluice.cdc_engine.records import files
from sluice.cdc_engine.records.contract import RecordStore, StoredRecord
from sluice.cdc_engine.records.files import LOCK_FILE, FileRecordStore
from sluice.cdc_engine.records.location import record_store
from tests.records.fix_locations import KINDS, SHARED, location_of


@pytest.fixture
def location(request: pytest.FixtureRequest, tmp_path: Path) -> LedgerLocation:
    return location_of(request.param, request, tmp_path)


@pytest.fixture
def store(location: LedgerLocation) -> RecordStore:
    return record_store(location)


every_store = pytest.mark.parametrize("location", KINDS, indirect=True)
every_shared_store = pytest.mark.parametrize("location", SHARED, indirect=True)


@every_store
def test_a_record_is_written_only_over_the_version_that_was_read(store: RecordStore) -> None:
    assert store.read("a") is None
    first = store.write("a", "one", version=0)
    assert store.read("a") == StoredRecord("one", first)
    with pytest.raises(StaleWriteError):
        store.write("a", "other", version=0)
    second = store.write("a", "two é", version=first)
    assert second != first
    with pytest.raises(StaleWriteError):
        store.write("a", "other", version=first)
    assert store.read("a") == StoredRecord("two é", second)
    assert store.get("a") == "two é"


@every_store
def test_a_removed_record_can_be_created_again_and_not_replaced(store: RecordStore) -> None:
    version = store.write("a.json", "one", version=0)
    assert store.remove("a.json")
    assert not store.remove("a.json")
    assert store.get("a.json") is None
    with pytest.raises(StaleWriteError):
        store.write("a.json", "two", version=version)
    assert store.get("a.json") is None
    store.write("a.json", "three", version=0)
    assert store.get("a.json") == "three"


@every_store
def test_a_record_is_removed_only_in_the_version_that_was_read(store: RecordStore) -> None:
    first = store.write("a/1.json", "one", version=0)
    second = store.write("a/1.json", "two", version=first)
    assert not store.remove("a/1.json", first)
    assert store.get("a/1.json") == "two"
    assert store.remove("a/1.json", second)
    assert not store.remove("a/1.json", second)
    assert store.get("a/1.json") is None


@every_store
def test_many_records_are_written_whatever_they_contained(store: RecordStore) -> None:
    many = {f"tables/{number:03d}.json": f"text {number} é" for number in range(120)}
    store.write_all({})
    version = store.write("tables/007.json", many["tables/007.json"], version=0)
    store.write("tables/008.json", "other", version=0)
    store.write("other.json", "other", version=0)
    store.write_all(many)
    assert store.all("tables") == many
    assert store.get("other.json") == "other"
    found = store.read("tables/007.json")
    assert found is not None
    assert found.version == version, "it had its text already"
    store.write_all({"tables/009.json": "changed", "tables/new.json": "new"})
    assert store.all("tables") == {**many, "tables/009.json": "changed", "tables/new.json": "new"}


@every_shared_store
def test_records_of_a_later_lease_are_not_replaced(store: RecordStore) -> None:
    store.write_all({"a/1.json": "of the second", "a/2.json": "of the second"}, token=2)
    with pytest.raises(StaleWriteError):
        store.write_all({"a/2.json": "of the first"}, token=1)
    assert store.all("a") == {"a/1.json": "of the second", "a/2.json": "of the second"}
    store.write_all({"a/2.json": "of the third"}, token=3)
    found = store.read("a/2.json")
    assert found is not None
    assert (found.text, found.token) == ("of the third", 3)


def test_a_disk_that_fills_leaves_whole_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, write = FileRecordStore(tmp_path), durable_files.write_file

    def full(path: Path, content: bytes) -> None:
        if path.name == "2.json":
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, content)

    store.write_all({f"a/{number}.json": "before" for number in range(4)})
    monkeypatch.setattr(files, "write_file", full)
    with pytest.raises(MetaError, match="No space left"):
        store.write_all({f"a/{number}.json": "after" for number in range(4)})
    assert list(store.all("a").values()) == ["after", "after", "before", "before"]
    monkeypatch.setattr(files, "write_file", write)
    store.write_all({f"a/{number}.json": "after" for number in range(4)})
    assert set(store.all("a").values()) == {"after"}


@every_store
def test_records_are_listed_by_the_beginning_of_their_names(store: RecordStore) -> None:
    assert store.read_all("a-") == {}
    versions = {name: store.write(name, f"of {name}", version=0) for name in ("a-1", "a-2", "b-1", "a%", "a_1")}
    store.write("a-2", "again", version=versions["a-2"])
    assert {name: each.text for name, each in store.read_all("a-").items()} == {"a-1": "of a-1", "a-2": "again"}
    assert store.read_all("a-")["a-2"] == store.read("a-2")
    store.remove("a-1")
    assert set(store.read_all("a-")) == {"a-2"}
    assert set(store.read_all("a_")) == {"a_1"}


@every_store
def test_a_folder_has_its_own_records_and_no_others(store: RecordStore) -> None:
    assert store.all("requests") == {}
    for name in ("requests/2.json", "requests/1.json", "requests.json", "requests-2/1.json"):
        store.put(name, name.upper())
    assert list(store.all("requests").items()) == [
        ("requests/1.json", "REQUESTS/1.JSON"),
        ("requests/2.json", "REQUESTS/2.JSON"),
    ]
    assert set(store.read_all("requests")) == {"requests.json"}
    long = f"requests/{'x' * 119}"
    store.put(long, "long")
    assert len(long) == 128
    assert store.get(long) == "long"


@every_shared_store
def test_a_lower_token_is_refused_by_stores_that_several_hosts_share(store: RecordStore) -> None:
    version = store.write("a", "one", version=0, token=3)
    with pytest.raises(StaleWriteError):
        store.write("a", "two", version=version, token=2)
    assert store.read("a") == StoredRecord("one", version, 3)
    store.write("a", "two", version=version, token=4)


@every_shared_store
def test_a_claim_refuses_every_later_write_of_an_earlier_holder(store: RecordStore) -> None:
    assert store.claim("a", 2) is None
    version = store.write("a", "one", version=0, token=1)
    claimed = store.claim("a", 2)
    assert claimed == store.read("a")
    assert claimed is not None
    assert (claimed.text, claimed.token) == ("one", 2)
    for read in (version, claimed.version):
        with pytest.raises(StaleWriteError):
            store.write("a", "late", version=read, token=1)
    with pytest.raises(StaleWriteError, match=r"took the lease later.*lease token 1\)"):
        store.claim("a", 1)
    store.write("a", "two", version=claimed.version, token=2)


@every_store
def test_one_of_many_writers_of_one_version_wins(store: RecordStore) -> None:
    version = store.write("a", "start", version=0)
    won: list[int] = []

    def write(number: int) -> None:
        try:
            store.write("a", str(number), version=version)
        except StaleWriteError:
            return
        won.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert store.get("a") == str(won[0])


@every_store
def test_a_change_is_computed_from_the_text_that_is_stored(location: LedgerLocation, store: RecordStore) -> None:
    """Another process writes between the read and the write of the first attempt."""
    other, seen = record_store(location), list[str | None]()

    def change(before: str | None) -> str:
        seen.append(before)
        if len(seen) == 1:
            other.put("a", "theirs")
        return f"{before} and ours"

    assert store.change("a", change) == "theirs and ours"
    assert seen == [None, "theirs"]
    assert store.get("a") == "theirs and ours"
    before = store.read("a")
    assert store.change("a", lambda text: text or "") == "theirs and ours"
    assert store.read("a") == before, "an unchanged text is not written"
    with pytest.raises(ZeroDivisionError):
        store.change("a", lambda _: str(1 / 0))
    assert store.read("a") == before


@every_store
def test_a_record_that_others_change_each_time_is_an_error(location: LedgerLocation, store: RecordStore) -> None:
    other, count = record_store(location), list[int]()

    def change(_: str | None) -> str:
        count.append(1)
        other.put("a", f"theirs {len(count)}")
        return "ours"

    with pytest.raises(MetaError, match=r"other processes wrote .*a.* before each attempt; try again"):
        store.change("a", change)
    assert store.get("a") == f"theirs {len(count)}"


def _count_up(folder: Path, times: int) -> None:
    for _ in range(times):
        FileRecordStore(folder).change("count", lambda text: str(int(text or 0) + 1))


def test_changes_of_several_processes_all_count_in_files(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_count_up, args=(tmp_path, 25)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert FileRecordStore(tmp_path).get("count") == "75"


def test_a_record_in_a_file_is_the_text_and_nothing_else(tmp_path: Path) -> None:
    store = FileRecordStore(tmp_path / "shop")
    assert not store.remove("a.json")
    assert store.all("folder") == {}
    assert not (tmp_path / "shop").exists(), "reading makes nothing"
    store.put("folder/a.json", "{}")
    assert (tmp_path / "shop" / "folder" / "a.json").read_text() == "{}"
    assert store.where("folder/a.json") == str(tmp_path / "shop" / "folder" / "a.json")
    (tmp_path / "shop" / "folder" / "b.tmp").write_text("what a crash left")
    (tmp_path / "shop" / "folder" / "chunks").mkdir()
    (tmp_path / "shop" / "folder" / "a.json").write_text("by hand")
    assert store.all("folder") == {"folder/a.json": "by hand"}


def test_fault_a_process_that_holds_the_lock_of_the_files_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LOCK_SECONDS_MAX", 0.01)
    store, lock = FileRecordStore(tmp_path), FileLock(tmp_path / LOCK_FILE)
    store.put("a", "one")
    assert lock.try_acquire()
    for change in (lambda: store.put("a", "two"), lambda: store.remove("a")):
        with pytest.raises(
            MetaError,
            match=r"another process has held the lock .*records\.lock for 0\.01 s: check whether that process hangs",
        ):
            change()
    assert store.get("a") == "one"
    lock.release()
    store.put("a", "two")
    assert store.get("a") == "two"


def test_fault_a_file_that_cannot_be_written_is_named_and_unchanged(tmp_path: Path) -> None:
    store = FileRecordStore(tmp_path)
    store.put("a.json", "one")
    (tmp_path / "a.tmp").mkdir()
    with pytest.raises(
        MetaError, match=r"a\.json could not be written .*free space on its disk, or permit writing to its folder"
    ):
        store.put("a.json", "two")
    assert store.get("a.json") == "one"


def test_files_that_people_and_editors_leave_are_no_records(tmp_path: Path) -> None:
    store = FileRecordStore(tmp_path)
    store.put("snapshots/a.json", "a")
    for name in ("a.json.bak", "a.json~", ".a.json.swp", "a copy.json", "a.json.tmp", "x.lock"):
        (tmp_path / "snapshots" / name).write_text("another")
    assert store.all("snapshots") == {"snapshots/a.json": "a"}


def test_a_database_is_shown_without_the_options_of_its_url(tmp_path: Path) -> None:
    location = LedgerLocation(
        destination="shop", directory=tmp_path, kind="sql", url=f"sqlite:///{tmp_path}/r.db?timeout=7"
    )
    assert "timeout" not in str(record_store(location))
    assert str(tmp_path) in str(record_store(location))


def test_a_file_system_without_locks_costs_no_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuses)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        with pytest.raises(OSError, match="No locks"):
            FileLock(tmp_path / "a.lock").try_acquire()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_an_act_on_a_stopped_destination_sees_that_a_holder_was_killed(tmp_path: Path) -> None:
    """A single look is not enough: only a process that watches a database lock for a whole session sees that the lock's holder ended."""
    location = LedgerLocation(
        destination="shop", directory=tmp_path / "shop", kind="sql", url=f"sqlite:///{tmp_path}/r.db", session_seconds=1
    )
    killed = LockClaim(claim_id="killed", pid=1, host="elsewhere", since=0.0, token=3, held=True)
    record_store(location).put(LEASE, json.dumps(dataclasses.asdict(killed)))
    with stopped_destination(DestinationDir.of(location)) as stopped:
        assert stopped.lease.token == 4


def test_a_ledger_of_an_earlier_version_names_its_cursor(tmp_path: Path) -> None:
    cursor = {"file": "binlog.000007", "offset": 4711}
    FileRecordStore(tmp_path).put(LEDGER, json.dumps({"format": 3, "cursor": cursor}))
    with pytest.raises(MetaError, match=r"earlier version .*`sluice position set shop binlog\.000007:4711`"):
        read_stored_ledger(FileRecordStore(tmp_path), "shop")


def settled_store(folder: Path) -> FileRecordStore:
    """Returns a store with records that were written an hour ago."""
    store = FileRecordStore(folder)
    store.write_all({f"a/{number}.json": "first" for number in range(3)})
    for path in (folder / "a", *(folder / "a").iterdir()):
        os.utime(path, (time.time() - 3600,) * 2)
    return store


def test_a_folder_of_records_is_listed_again_only_if_a_record_was_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, listed, scandir = settled_store(tmp_path), list[Path](), os.scandir

    def counted(path: Path) -> object:
        listed.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", counted)
    first = store.read_all("a/")
    assert store.read_all("a/") is first
    assert listed == [tmp_path / "a"]
    FileRecordStore(tmp_path).put("a/1.json", "second")
    assert [each.text for each in store.read_all("a/").values()].count("second") == 1
    assert FileRecordStore(tmp_path).remove("a/2.json")
    assert set(store.read_all("a/")) == {"a/0.json", "a/1.json"}


def test_a_record_that_an_operator_overwrites_is_read_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = settled_store(tmp_path)
    assert store.read_all("a/")["a/0.json"].text == "first"
    (tmp_path / "a" / "0.json").write_text("by an operator")
    monkeypatch.setattr(files, "LISTED_SECONDS_MAX", 0.0)
    assert store.read_all("a/")["a/0.json"].text == "by an operator"
