"""Tests the first commit of a table in a store in memory: what another run or program does between the upload and the commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pytest
from obstore.store import MemoryStore

from sluice.object_stores import folder, store_requests
from sluice.object_stores.errors import StoreError
from sluice.object_stores.folder import StoreFolder
from sluice.object_stores.google_files import GoogleHandler
from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.fence import Fence
from sluice.spark_jobs.snapshot.table_files import FilesInStore
from sluice.spark_jobs.tables.table_in_store import TableInStore, clear_path, make_empty

NAME, URL, SNAPSHOT = "shop.orders", "gs://lake/shop/orders", "0123456789ab"
FIRST = "_delta_log/00000000000000000000.json"
LOST = "this run does not hold the run lock of shop any more"


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> StoreFolder:
    """Returns the folder of a table that does not exist yet."""
    store = MemoryStore()

    def opened(url: str, _options: Mapping[str, str]) -> tuple[pafs.PyFileSystem, str]:
        return pafs.PyFileSystem(GoogleHandler(store)), url.partition("://")[2]

    monkeypatch.setattr(folder, "file_system", opened)
    monkeypatch.setattr(store_requests, "google_store", lambda url, _: (store, url.partition("://")[2]))
    return StoreFolder(URL, {})


def make(table: StoreFolder, scratch: Path, text: str = "commit", refusal: Callable[[], str] = lambda: "") -> str:
    """Makes a table of one file, and returns the file's name."""
    files, rows = FilesInStore(table, SNAPSHOT, scratch), pa.table({"id": [1]})
    names: list[str] = []

    def commit() -> str:
        names.append(files.write(rows.schema, (rows,)).name)
        return text

    TableInStore(NAME, table, Fence(refusal)).make(files, commit)
    return names[0]


def clear(table: StoreFolder) -> bool:
    return TableInStore(NAME, table, Fence(lambda: "")).clear()


def before_the_commit(patch: pytest.MonkeyPatch, act: Callable[[StoreFolder], object]) -> None:
    """Calls `act` once between the check of the fence and the commit."""
    put_new = StoreFolder.put_new

    def late(table: StoreFolder, name: str, content: bytes) -> bool:
        patch.setattr(StoreFolder, "put_new", put_new)
        act(table)
        return put_new(table, name, content)

    patch.setattr(StoreFolder, "put_new", late)


def test_store_a_table_consists_of_its_files_and_the_commit(table: StoreFolder, tmp_path: Path) -> None:
    name = make(table, tmp_path)
    assert set(table.sizes()) == {name, FIRST}
    assert not clear(table)
    assert set(table.sizes()) == {name, FIRST}


def test_store_a_commit_that_arrives_after_the_lock_was_lost_is_no_success_ha(
    table: StoreFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store answers the commit late. Meanwhile another run takes the lock and removes the files. It then publishes the table again."""
    lost: list[str] = []
    before_the_commit(monkeypatch, lambda there: lost.append(LOST) if clear(there) else None)
    with pytest.raises(TableError, match=LOST):
        make(table, tmp_path, refusal=lambda: lost[0] if lost else "")
    assert set(table.sizes()) == {FIRST}
    with pytest.raises(TableError, match="another program created"):
        make(table, tmp_path, text="of the other run")
    assert set(table.sizes()) == {FIRST}


def test_store_a_lock_that_is_lost_during_the_commit_leaves_the_whole_table_ha(
    table: StoreFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[str] = []
    before_the_commit(monkeypatch, lambda _: lost.append(LOST))
    with pytest.raises(TableError, match=LOST):
        make(table, tmp_path, refusal=lambda: lost[0] if lost else "")
    assert len(table.sizes()) == 2
    assert not clear(table)
    assert len(table.sizes()) == 2


def empty(table: StoreFolder) -> None:
    """Makes the first commit of an empty table."""
    make_empty(NAME, table.url, "commit", {}, Fence(lambda: ""))


def test_store_an_empty_table_is_made_next_to_what_a_killed_commit_left(table: StoreFolder) -> None:
    left = {"_delta_log", "_delta_log/_staged_commits", f"_delta_log/.{FIRST.partition('/')[2]}.1-2.tmp"}
    for name in left:
        table.write(name, b"")
    assert clear(table)
    empty(table)
    assert set(table.sizes()) == {*left, FIRST}
    assert table.read(FIRST) == b"commit"


def test_store_an_empty_table_replaces_no_table_and_takes_no_folder_of_another_program(table: StoreFolder) -> None:
    table.write("theirs.csv", b"1")
    with pytest.raises(TableError, match="has files of another program"):
        empty(table)
    table.write(FIRST, b"of another run")
    empty(table)
    assert table.read(FIRST) == b"of another run"


def test_store_identity_files_that_were_removed_before_the_commit_become_no_table(
    table: StoreFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another destination has the same path in its conf/. It takes the files for those of a killed run, and removes them."""
    put_file = StoreFolder.put_file

    def removed(there: StoreFolder, file: Path, name: str = "") -> None:
        put_file(there, file, name)
        clear(there)

    monkeypatch.setattr(StoreFolder, "put_file", removed)
    with pytest.raises(TableError, match="another program removed or replaced snapshot-0123456789ab-") as reported:
        make(table, tmp_path)
    assert not reported.value.own
    assert table.sizes() == {}


def test_store_fault_files_stay_if_a_refused_commit_cannot_be_read(
    table: StoreFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store may still be writing what an earlier request sent. Then the files may become a table, so they must stay."""
    monkeypatch.setattr(StoreFolder, "put_new", lambda *_: False)
    with pytest.raises(TableError, match="another program created"):
        make(table, tmp_path)
    assert len(table.sizes()) == 1
    assert clear(table)
    assert table.sizes() == {}


def test_store_a_path_that_cannot_be_listed_is_no_failure_of_the_table_itself(
    table: StoreFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unanswered(there: StoreFolder) -> dict[str, int]:
        raise StoreError(f"{there.url}: nobody answers")

    monkeypatch.setattr(StoreFolder, "sizes", unanswered)
    with pytest.raises(
        TableError, match=r"cannot be listed or cleared: .* nobody answers; Sluice tries again"
    ) as reported:
        clear_path(NAME, table.url, {}, Fence(lambda: ""))
    assert not reported.value.own
