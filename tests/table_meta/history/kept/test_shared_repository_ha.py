"""Tests the schema history in the record store of a shared ledger, with several hosts, crashes, and writes without an answer."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from sluice.cdc_engine.errors import LeaseLostError, MetaError, NotSharedError
from sluice.cdc_engine.records.contract import NOT_THERE, NOTHING, StoredRecord
from sluice.cdc_engine.records.memory import MemoryRecordStore
from sluice.cdc_engine.table_meta.history.kept import shared_repository
from sluice.cdc_engine.table_meta.history.kept.repository import HistoryRecord
from sluice.cdc_engine.table_meta.history.kept.shared_repository import HEAD, SharedRepository
from tests.table_meta.history.kept.test_ddl_repositories import record


class Broken(MemoryRecordStore):
    """A record store that gives no answer to one write. `left` is the number of this write, counted from the next write. If `kept` is set,
    the store still executes the write.
    """

    def __init__(self) -> None:
        super().__init__()
        self.left, self.kept = -1, False

    def write(self, name: str, text: str, *, version: int, token: int = 0, also: Mapping[str, str] = NOTHING) -> int:
        self.left -= 1
        if self.left != 0:
            return super().write(name, text, version=version, token=token, also=also)
        if self.kept:
            super().write(name, text, version=version, token=token, also=also)
        raise NotSharedError("no answer; Sluice tries again")


def read_again(documents: MemoryRecordStore) -> list[HistoryRecord]:
    return SharedRepository(documents).load()


def test_ha_an_earlier_holder_of_the_lease_adds_nothing() -> None:
    documents = MemoryRecordStore()
    old, new = SharedRepository(documents, token=1), SharedRepository(documents, token=2)
    old.load()
    old.append([record(1)])
    assert new.load() == [record(1)]
    for late in (lambda: old.append([record(7)]), lambda: old.replace([record(7)]), old.load):
        with pytest.raises(LeaseLostError):
            late()
    new.append([record(2)])
    with pytest.raises(LeaseLostError):
        old.append([record(7)])
    assert read_again(documents) == [record(1), record(2)]


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("how", ["append", "replace"])
def test_ha_a_crash_during_a_write_leaves_all_of_it_or_nothing(
    how: str, at: int, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write stores two chunks and then the head, which makes them valid. The next writer overwrites chunks that no head names."""
    monkeypatch.setattr(shared_repository, "CHUNK_BYTES_MAX", 1)
    documents = Broken()
    SharedRepository(documents, token=1).append([record(1)])
    broken, given = SharedRepository(documents, token=2), [record(2), record(3)]
    broken.load()
    documents.left, documents.kept = at, kept
    with pytest.raises(NotSharedError):
        broken.append(given) if how == "append" else broken.replace(given)
    after = [record(1), *given] if how == "append" else given
    whole = after if kept and at == 3 else [record(1)]
    assert read_again(documents) == whole
    successor = SharedRepository(documents, token=3)
    assert successor.load() == whole
    successor.append([record(9)])
    assert read_again(documents) == [*whole, record(9)]


@pytest.mark.parametrize("kept", [False, True])
def test_ha_an_unanswered_write_did_not_happen_for_its_writer(kept: bool) -> None:
    """A write without an answer counts as failed. The engine then reads the stream again, possibly with another result. So the failed write
    must not appear after a restart.
    """
    documents = Broken()
    repository = SharedRepository(documents, token=1)
    repository.append([record(1)])
    documents.left, documents.kept = 2, kept
    with pytest.raises(NotSharedError):
        repository.append([record(2)])
    repository.append([record(3)])
    assert read_again(documents) == [record(1), record(3)]


def test_ha_a_reader_during_a_write_sees_one_history_or_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the reader reads, a writer replaces the history, which removes chunks that the reader was about to read."""
    documents = MemoryRecordStore()
    writer = SharedRepository(documents, token=1)
    writer.append([record(1), record(2)])
    read_all, replaced = documents.read_all, list[bool]()

    def meanwhile(prefix: str) -> object:
        if not replaced:
            replaced.append(True)
            writer.replace([record(2)])
        return read_all(prefix)

    monkeypatch.setattr(documents, "read_all", meanwhile)
    assert read_again(documents) == [record(2)]


def test_ha_a_history_that_is_not_understood_is_refused() -> None:
    documents = MemoryRecordStore()
    writer = SharedRepository(documents, token=1)
    writer.append([record(1)])
    documents.remove("schema-000000-00000000")
    with pytest.raises(MetaError, match="lacks 1 of its chunks"):
        read_again(documents)
    kept = documents.read(HEAD)
    assert kept is not None
    newer = json.dumps({**json.loads(kept.text), "format": 3, "more": "fields"})
    documents.write(HEAD, newer, version=kept.version, token=1)
    with pytest.raises(
        MetaError,
        match=r"the record has format 3, and this version of Sluice reads format 2.*run the version of Sluice that",
    ):
        writer.append([record(2)])
    documents.remove(HEAD)
    documents.write(HEAD, "no record", version=NOT_THERE)
    with pytest.raises(MetaError, match="cannot be read"):
        read_again(documents)


def test_ha_a_writer_that_was_paused_after_a_replacement_keeps_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old process replaces the history and then pauses. Meanwhile its successor replaces the history too. When the old process
    continues to remove old chunks, it must not remove those of its successor.
    """
    store = MemoryRecordStore()
    old, new = SharedRepository(store, token=1), SharedRepository(store, token=2)
    old.load()
    old.append([record(1)])
    read_all = store.read_all

    def stands_still(prefix: str) -> Mapping[str, StoredRecord]:
        monkeypatch.setattr(store, "read_all", read_all)
        new.load()
        new.replace([record(3)])
        return read_all(prefix)

    monkeypatch.setattr(store, "read_all", stands_still)
    old.replace([record(2)])
    assert read_again(store) == [record(3)]
