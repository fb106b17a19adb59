"""Tests the file store over a restart: where it continues, what a crash may remove, and when its files are refused or discarded."""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.cdc_engine.contracts import TableChange, TableChangeKind
from sluice.cdc_engine.errors import StoreDamagedError, StoreFullError, StoreUnfitError
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.store.files import log
from sluice.cdc_engine.store.memory_store import MemoryEventStore
from sluice.cdc_engine.store.opening import GoingOn, StorePlan, open_store
from tests.fix_blocks import SERVER, Source, numbers_in
from tests.store.fix_stores import FILTERS, LEDGER, START

MANY = 1 << 40
PURGED = "the source has purged it"


class Restarts:
    """One destination's files. The ledger is `cursor`."""

    def __init__(self, folder: Path) -> None:
        self.cursor, self.lost = START, ""
        self.plan = StorePlan(kind="file", directory=folder)
        self.ledger = GoingOn(ledger_id=LEDGER, filters=FILTERS, epoch=1, begin=START, lost=lambda: self.lost)
        folder.mkdir(exist_ok=True)

    def open(self, **changed: object) -> MemoryEventStore:
        ledger = dataclasses.replace(self.ledger, **{"begin": self.cursor, **changed})  # type: ignore[arg-type]
        return open_store(self.plan, ledger, lambda: self.cursor)

    def take(self, store: MemoryEventStore, events: int = MANY) -> list[int]:
        """Returns the row events of the next batch, and acks the batch in the ledger and the store."""
        batch = store.get(MANY, events)
        assert batch.end is not None
        self.cursor = batch.end
        store.ack(batch.end)
        return numbers_in(batch)

    def files(self) -> list[Path]:
        return sorted(self.plan.directory.glob("events/*.events"))


@pytest.fixture
def shop(tmp_path: Path) -> Restarts:
    return Restarts(tmp_path / "shop")


@pytest.fixture
def source() -> Source:
    return Source()


def stored(shop: Restarts, source: Source) -> MemoryEventStore:
    """Stores four transactions of two row events each, of which the first is acked, and an open transaction."""
    store = shop.open()
    store.put(source.block([2, 2]))
    store.put(source.block([2, 2], open_events=3))
    assert shop.take(store, 2) == [0, 1]
    return store


def test_a_restart_continues_within_a_block_and_then_reads_from_the_files_end(shop: Restarts, source: Source) -> None:
    end = stored(shop, source).put_position
    again = shop.open()
    assert (again.put_position, again.acked_position) == (end, shop.cursor)
    assert again.metrics().waiting_transactions == 3
    assert numbers_in(again.get(MANY, MANY)) == [2, 3, 4, 5, 6, 7]
    source.number, source.transaction, source.offset = 8, 4, end.offset if end else 0
    again.put(source.block([3, 1]))
    assert numbers_in(again.get(MANY, MANY)) == [8, 9, 10, 11]
    third = shop.open()
    assert numbers_in(third.get(MANY, MANY)) == list(range(2, 12))


def test_table_changes_and_their_schemas_come_back_as_they_were(shop: Restarts, source: Source) -> None:
    change = TableChange(
        kind=TableChangeKind.SCHEMA, database="shop", table="orders", order_key=7, time_us=1, fills=(("a", "1"),)
    )
    store = shop.open()
    store.put(source.block([1], table=1))
    store.put(source.block([0], changes=(change,)))
    found = shop.open().get(MANY, MANY).slices
    assert found[1].changes == (change,)
    assert list(found[0].block.tables) == source.tables
    assert found[0].block.event_table.tolist() == [1]


@pytest.mark.parametrize("lost_bytes", [1, 20, 300, 100_000])
def test_fault_a_torn_tail_is_removed_after_the_last_whole_transaction(
    shop: Restarts, source: Source, lost_bytes: int
) -> None:
    whole = stored(shop, source).put_position
    newest = shop.files()[-1]
    os.truncate(newest, max(0, newest.stat().st_size - lost_bytes))
    again = shop.open()
    end = again.put_position
    assert end is not None
    assert whole is not None
    assert shop.cursor.order_key <= end.order_key < whole.order_key
    batch = again.get(MANY, MANY)
    assert numbers_in(batch) == [2, 3][: batch.event_count]


def test_fault_what_follows_a_torn_tail_is_never_taken_for_what_was_written_before(
    shop: Restarts, source: Source
) -> None:
    """The test damages the last record of the newest file. The bytes of this record stay in the file, so the next start writes into another
    file.
    """
    stored(shop, source)
    with shop.files()[-1].open("r+b") as file:
        file.seek(-200, os.SEEK_END)
        file.write(b"\xff" * 8)
    again = shop.open()
    position = again.put_position
    assert position is not None
    source.number, source.transaction, source.offset = 4, 2, position.offset
    again.put(source.block([5]))
    for store in (again, shop.open()):
        assert numbers_in(store.get(MANY, MANY)) == [2, 3, 4, 5, 6, 7, 8]


Change = Callable[[Restarts], dict[str, object]]
ELSEWHERE = Position(epoch=1, file="mysql-bin.000001", offset=33, server_uuid=SERVER)
BEYOND = dataclasses.replace(ELSEWHERE, file="mysql-bin.000009")
MISFITS: dict[str, tuple[Change, str]] = {
    "another ledger": (lambda _: {"ledger_id": "ffff"}, "the events were stored under the ledger"),
    "another filter": (lambda _: {"filters": "less"}, "the captured tables in conf/"),
    "an epoch that the ledger never began": (lambda _: {"epoch": 0}, "which the ledger never began"),
    "amid a transaction": (lambda _: {"begin": ELSEWHERE}, "none of the stored transactions ends at"),
    "another file of that name": (
        lambda shop: {"begin": dataclasses.replace(shop.cursor, server_uuid="other")},
        "although both files have the name",
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_fault_what_does_not_fit_the_ledger_is_read_again_where_the_source_has_it_and_kept_where_not(
    shop: Restarts, source: Source, name: str
) -> None:
    change, why = MISFITS[name]
    stored(shop, source)
    shop.lost = PURGED
    with pytest.raises(StoreUnfitError, match=f"{why}.*{PURGED}"):
        shop.open(**change(shop))
    assert numbers_in(shop.open().get(MANY, MANY)) == [2, 3, 4, 5, 6, 7]
    shop.lost = ""
    again = shop.open(**change(shop))
    assert again.get(MANY, MANY).empty
    assert again.put_position == change(shop).get("begin", shop.cursor)


def test_fault_a_ledger_that_is_ahead_of_the_files_starts_them_again(shop: Restarts, source: Source) -> None:
    """All events in the files are acked, so the files are discarded without a query whether the source still has them."""
    stored(shop, source)
    shop.lost = PURGED
    shop.cursor = BEYOND
    assert shop.open().put_position == BEYOND


def test_fault_another_kind_of_store_leaves_files_that_are_needed(shop: Restarts, source: Source) -> None:
    stored(shop, source)
    shop.lost = PURGED
    file = shop.plan
    for kind in ("memory", "mixed"):
        shop.plan = dataclasses.replace(file, kind=kind)
        with pytest.raises(StoreUnfitError, match="another kind of store"):
            shop.open()
    shop.plan = file
    assert numbers_in(shop.open().get(MANY, MANY)) == [2, 3, 4, 5, 6, 7]


def test_fault_events_that_changed_on_disk_are_never_handed_out(shop: Restarts, source: Source) -> None:
    stored(shop, source)
    shop.open()
    first = shop.files()[0]
    content = bytearray(first.read_bytes())
    content[-40] ^= 1
    first.write_bytes(content)
    with pytest.raises(StoreDamagedError, match=r"000000000001\.events cannot be read at byte"):
        numbers_in(shop.open().get(MANY, MANY))


HUGE_BLOCKS, BLOCK_EVENTS, RING_EVENTS = 10, 100, 150


def huge(shop: Restarts, source: Source, kind: str) -> MemoryEventStore:
    """Stores a small transaction, and then a transaction of ten blocks, although the ring has space for two. The small transaction is acked
    only after all blocks are stored.
    """
    shop.plan = dataclasses.replace(shop.plan, kind=kind, events_max=RING_EVENTS)
    store = shop.open()
    store.put(source.block([2]))
    for _ in range(HUGE_BLOCKS):
        store.put(source.block([], open_events=BLOCK_EVENTS, size=1000))
    store.put(source.block([0]))
    assert shop.take(store, 1) == [0, 1]
    return store


@pytest.mark.parametrize("kind", ["file", "mixed"])
def test_a_huge_transaction_is_written_once(shop: Restarts, source: Source, kind: str) -> None:
    """The store refers to the blocks in the segment log, and writes no second copy into `spill`."""
    store = huge(shop, source, kind)
    batch = store.get(MANY, MANY)
    wanted = list(range(2, 2 + HUGE_BLOCKS * BLOCK_EVENTS))
    assert store.metrics().fill_events <= RING_EVENTS + BLOCK_EVENTS
    assert numbers_in(batch) == wanted == numbers_in(batch)
    assert not list(shop.plan.directory.glob("spill/*"))
    store.rollback()
    assert numbers_in(store.get(MANY, MANY)) == wanted
    assert batch.end is not None
    store.ack(batch.end)
    assert store.metrics().spilled_bytes == 0


def test_a_huge_transaction_is_written_once_while_nothing_else_waits(shop: Restarts, source: Source) -> None:
    """No other batch waits, so the blocks go into the ring at once. The store must still not write a second copy into `spill`."""
    shop.plan = dataclasses.replace(shop.plan, events_max=RING_EVENTS)
    store = shop.open()
    for _ in range(HUGE_BLOCKS):
        store.put(source.block([], open_events=BLOCK_EVENTS))
    assert store.metrics().spilled_bytes > 0
    assert not list(shop.plan.directory.glob("spill/*"))
    store.put(source.block([0]))
    assert numbers_in(store.get(MANY, MANY)) == list(range(HUGE_BLOCKS * BLOCK_EVENTS))
    assert numbers_in(shop.open().get(MANY, MANY)) == list(range(HUGE_BLOCKS * BLOCK_EVENTS))


def test_fault_a_huge_transaction_that_changed_in_the_log_is_refused_by_name(shop: Restarts, source: Source) -> None:
    batch = huge(shop, source, "file").get(MANY, MANY)
    path = shop.files()[-1]
    content = bytearray(path.read_bytes())
    content[-100_000] ^= 1
    path.write_bytes(content)
    with pytest.raises(
        StoreDamagedError, match=rf"{path.name} cannot be read at byte \d+ \(the checksum of the record"
    ):
        numbers_in(batch)


def test_fault_a_full_disk_says_so_and_loses_nothing(
    shop: Restarts, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stored(shop, source)
    store.drop_open_transaction()
    before = store.metrics()
    source.number, source.transaction, source.offset = 8, 4, store.put_position.offset if store.put_position else 0
    block, write = source.block([4]), os.pwritev

    def half(descriptor: int, views: list[memoryview], offset: int) -> int:
        write(descriptor, [views[0][:10]], offset)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", half)
        with pytest.raises(StoreFullError, match=r"No space left on device.*no change is lost"):
            store.put(block)
    assert store.metrics() == before
    store.put(block)
    wanted = list(range(2, 12))
    assert numbers_in(store.get(MANY, MANY)) == wanted
    assert numbers_in(shop.open().get(MANY, MANY)) == wanted


def test_fault_a_disk_that_does_not_sync_leaves_nothing_half_done(
    shop: Restarts, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a sync fails, the events must be neither stored nor handed out. Otherwise they would arrive twice or never."""
    store = shop.open()
    store.put(source.block([1]))
    block = source.block([1])

    def fails(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(log, "SYNC_SECONDS", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fails)
        with pytest.raises(StoreFullError, match="Input/output error"):
            store.put(block)
    assert store.metrics().put_sequence == 1
    store.put(block)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fails)
        with pytest.raises(StoreFullError, match="Input/output error"):
            store.get(MANY, MANY)
    assert numbers_in(store.get(MANY, MANY)) == [0, 1]


def test_files_are_bounded_by_what_is_acked_and_a_rollback_reaches_as_far_as_they_do(
    shop: Restarts, source: Source
) -> None:
    shop.plan = dataclasses.replace(shop.plan, files_bytes_max=32_000)
    store = shop.open()
    cursors = []
    for _ in range(60):
        store.put(source.block([4], size=200))
        shop.take(store)
        cursors.append(shop.cursor)
    assert sum(path.stat().st_size for path in shop.files()) < 40_000
    assert not store.go_back(cursors[0])
    assert store.go_back(cursors[-5])
    store.rollback()
    assert numbers_in(store.get(MANY, MANY)) == list(range(4 * 56, 4 * 60))


def test_a_ddl_statement_is_a_batch_of_its_own_where_conf_says_so(shop: Restarts, source: Source) -> None:
    shop.plan = dataclasses.replace(shop.plan, ddl_isolation=True)
    store = shop.open()
    change = TableChange(kind=TableChangeKind.TRUNCATE, database="shop", table="orders", order_key=1, time_us=0)
    store.put(source.block([1, 1]))
    store.put(source.block([0], changes=(change,)))
    store.put(source.block([1]))
    batches = [store.get(MANY, MANY) for _ in range(3)]
    assert [(numbers_in(each), each.stands_alone) for each in batches] == [([0, 1], False), ([], True), ([2], False)]
