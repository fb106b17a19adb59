"""Tests the contract of the three stores: get, ack, rollback, a lost connection, and when a put waits."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.cdc_engine.contracts import TableChange, TableChangeKind
from sluice.cdc_engine.errors import BatchNotFoundError
from sluice.cdc_engine.instance.status import figures_of
from sluice.cdc_engine.parser.stream.event_parser import StreamCounters
from sluice.cdc_engine.store.memory_store import MemoryEventStore
from sluice.cdc_engine.store.timeline import SMALL_BYTES_MAX
from tests.fix_blocks import Source, gtid_set, numbers_in
from tests.store.fix_stores import KINDS, START, make_store

MANY = 1 << 40
DEADLINE_SECONDS = 10.0


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(kind: str, tmp_path: Path) -> MemoryEventStore:
    return make_store(kind, tmp_path, bytes_max=1 << 20, events_max=1000)


@pytest.fixture
def source() -> Source:
    return Source()


def waiting_until(condition: Callable[[], bool]) -> None:
    """Waits until another thread makes a condition true. Fails after DEADLINE_SECONDS."""
    event = threading.Event()
    for _ in range(int(DEADLINE_SECONDS / 0.005)):
        if condition():
            return
        event.wait(0.005)
    raise AssertionError("the condition did not come about")


def change(kind: TableChangeKind = TableChangeKind.TRUNCATE) -> TableChange:
    return TableChange(kind=kind, database="shop", table="orders", order_key=1, time_us=0)


def test_an_empty_store_hands_out_nothing(store: MemoryEventStore) -> None:
    batch = store.get(MANY, MANY)
    assert batch.empty
    assert batch.batch_id == -1
    assert batch.slices == ()


def test_a_batch_has_all_whole_transactions_and_leaves_the_open_one(store: MemoryEventStore, source: Source) -> None:
    store.put(source.block([2, 1], open_events=4))
    batch = store.get(MANY, MANY)
    assert numbers_in(batch) == [0, 1, 2]
    assert batch.event_count == 3
    assert batch.byte_count == 48
    assert store.get(MANY, MANY).empty


def test_an_open_transaction_continues_over_blocks_and_is_delivered_whole(
    store: MemoryEventStore, source: Source
) -> None:
    store.put(source.block([1], open_events=2))
    store.put(source.block([], open_events=3))
    store.put(source.block([1, 1]))
    assert numbers_in(store.get(16, 1)) == [0]
    batch = store.get(16, 1)
    assert numbers_in(batch) == [1, 2, 3, 4, 5, 6]
    assert numbers_in(store.get(16, 1)) == [7]


@pytest.mark.parametrize(("byte_count_max", "event_count_max"), [(48, MANY), (MANY, 3), (63, 5), (64, 4)])
def test_a_batch_ends_within_a_block_at_the_last_transaction_that_fits(
    store: MemoryEventStore, source: Source, byte_count_max: int, event_count_max: int
) -> None:
    store.put(source.block([1, 2, 2, 1]))
    batch = store.get(byte_count_max, event_count_max)
    assert numbers_in(batch) == [0, 1, 2]
    assert numbers_in(store.get(MANY, MANY)) == [3, 4, 5]


def test_a_transaction_above_the_limit_is_handed_out_alone(store: MemoryEventStore, source: Source) -> None:
    store.put(source.block([5, 1]))
    assert numbers_in(store.get(1, 1)) == [0, 1, 2, 3, 4]


def test_positions_follow_each_other_and_carry_the_gtid_set(store: MemoryEventStore, source: Source) -> None:
    store.put(source.block([1, 1]))
    store.put(source.block([1]))
    first, second, third = (store.get(1, 1) for _ in range(3))
    assert [batch.end.gtid_set for batch in (first, second, third) if batch.end] == [
        gtid_set(1),
        gtid_set(2),
        gtid_set(3),
    ]
    assert first.start is None
    assert second.start == first.end
    assert third.start == second.end
    assert third.end is not None
    assert third.end.offset == source.offset
    assert store.put_position == third.end


def test_a_batch_does_not_span_epochs(store: MemoryEventStore, source: Source) -> None:
    store.put(source.block([1, 1]))
    source.epoch = 2
    store.put(source.block([1]))
    assert numbers_in(store.get(MANY, MANY)) == [0, 1]
    assert numbers_in(store.get(MANY, MANY)) == [2]


def test_table_changes_keep_their_position_and_count_as_a_transaction(store: MemoryEventStore, source: Source) -> None:
    store.put(source.block([1]))
    store.put(source.block([0], changes=(change(),)))
    store.put(source.block([1]))
    batch = store.get(MANY, 1)
    assert [each.changes for each in batch.slices] == [(), (change(),)]
    assert numbers_in(batch) == [0]
    assert numbers_in(store.get(MANY, 1)) == [1]


def test_ddl_a_table_that_took_another_name_is_a_batch_of_its_own(store: MemoryEventStore, source: Source) -> None:
    renamed = dataclasses.replace(change(TableChangeKind.SCHEMA), renamed_from="shop.items")
    store.put(source.block([1, 1]))
    store.put(source.block([1]))
    for _ in range(2):
        store.put(source.block([0], changes=(renamed,)))
    store.put(source.block([1], changes=()))
    batches = [store.get(MANY, MANY) for _ in range(5)]
    assert [numbers_in(batch) for batch in batches] == [[0, 1, 2], [], [], [3], []]
    assert [batch.stands_alone for batch in batches] == [False, True, True, False, False]
    store.rollback()
    assert [store.get(MANY, 1).event_count for _ in range(6)] == [1, 1, 1, 0, 0, 1]


@pytest.mark.parametrize("first", [True, False], ids=["before its rows", "between its rows"])
@pytest.mark.parametrize("events_max", [1, 1000], ids=["a full ring", "room"])
def test_table_changes_within_a_transaction_are_handed_out_with_it(
    kind: str, tmp_path: Path, source: Source, first: bool, events_max: int
) -> None:
    """A table stops at its table map, or a CREATE TABLE ... SELECT occurs. The transaction continues after this change."""
    store = make_store(kind, tmp_path, events_max=events_max)
    if not first:
        store.put(source.block([], open_events=2))
    store.put(source.block([], changes=(change(),)))
    assert store.get(MANY, MANY).empty
    store.put(source.block([2]))
    for _ in range(2):
        batch = store.get(MANY, MANY)
        assert [len(each.changes) for each in batch.slices] == ([1, 0] if first else [0, 1, 0])
        assert [each.last_event - each.first_event for each in batch.slices if each.changes] == [0]
        store.rollback()
    batch = store.get(MANY, MANY)
    assert batch.end is not None
    store.ack(batch.end)
    store.put(source.block([1]))
    assert [len(each.changes) for each in store.get(MANY, MANY).slices] == [0]


def test_table_changes_of_a_dropped_transaction_are_forgotten(store: MemoryEventStore, source: Source) -> None:
    store.put(source.block([1]))
    store.put(source.block([], changes=(change(),)))
    store.drop_open_transaction()
    store.put(source.block([1]))
    assert [len(each.changes) for each in store.get(MANY, MANY).slices if each.changes] == []


def test_table_changes_together_with_row_events_are_refused(store: MemoryEventStore, source: Source) -> None:
    with pytest.raises(ValueError, match="table changes"):
        store.put(source.block([1], changes=(change(),)))


def test_empty_transactions_move_the_end_without_a_slice(store: MemoryEventStore, source: Source) -> None:
    store.put(source.block([0, 0]))
    batch = store.get(MANY, MANY)
    assert not batch.empty
    assert batch.slices == ()
    assert batch.event_count == 0
    assert batch.end is not None
    assert batch.end.gtid_set == gtid_set(2)


def test_a_files_beginning_is_no_change_that_waits(store: MemoryEventStore, source: Source) -> None:
    """The beginning of a binlog file has the time of the last commit, which may be long ago. It must not count as an old change without an
    ack.
    """
    source.time_us = 5_000_000
    store.put(source.block([1]))
    taken = store.get(MANY, MANY).end
    assert taken is not None
    store.ack(taken)
    store.put(source.block([0]))
    assert store.oldest_time_us == 0
    store.put(source.block([1]))
    assert store.oldest_time_us == source.time_us


def test_empty_blocks_that_were_not_read_replace_each_other(store: MemoryEventStore, source: Source) -> None:
    store.put(source.block([1]))
    for _ in range(5):
        store.put(source.block([0]))
    assert store.metrics().waiting_transactions == 2
    batch = store.get(MANY, MANY)
    assert batch.end is not None
    assert batch.end.gtid_set == gtid_set(6)


def test_an_empty_block_that_ends_an_open_transaction_is_not_replaced(store: MemoryEventStore, source: Source) -> None:
    store.put(source.block([], open_events=2))
    store.put(source.block([0]))
    store.put(source.block([0]))
    batch = store.get(1, 1)
    assert numbers_in(batch) == [0, 1]
    assert batch.end is not None
    assert batch.end.gtid_set == gtid_set(1)


def test_small_neighbours_are_handed_out_as_one_slice(store: MemoryEventStore, source: Source) -> None:
    """Small blocks also become one slice if a transaction spans them. A new file, other table references and table changes end a slice."""
    for open_events in (2, 0, 1, 0):
        store.put(source.block([1], open_events))
    source.file = "mysql-bin.000002"
    store.put(source.block([1, 0]))
    source.tables = list(source.tables)
    store.put(source.block([1]))
    store.put(source.block([0], changes=(change(),)))
    store.put(source.block([1]))
    first = store.get(1, 1)
    assert numbers_in(first) == [0]
    batch = store.get(MANY, MANY)
    assert numbers_in(batch) == list(range(1, 10))
    assert [each.last_event - each.first_event for each in batch.slices] == [6, 1, 1, 0, 1]
    assert batch.slices[0].block is first.slices[0].block
    assert batch.end is not None
    assert batch.end.gtid_set == gtid_set(9)


def test_neighbours_between_which_transactions_were_left_out_keep_their_gtids(
    store: MemoryEventStore, source: Source
) -> None:
    store.put(source.block([1]))
    source.block([0])  # thinned out by the sink
    store.put(source.block([1]))
    batch = store.get(MANY, MANY)
    assert len(batch.slices) == 2
    assert batch.end is not None
    assert batch.end.gtid_set == gtid_set(3)


def test_large_neighbours_stay_as_they_are(kind: str, tmp_path: Path, source: Source) -> None:
    store = make_store(kind, tmp_path, bytes_max=4 * SMALL_BYTES_MAX)
    blocks = [source.block([1], size=SMALL_BYTES_MAX) for _ in range(2)]
    for block in blocks:
        store.put(block)
    assert [each.block for each in store.get(MANY, MANY).slices] == blocks


def test_a_dropped_open_transaction_does_not_come_back_by_joining(store: MemoryEventStore, source: Source) -> None:
    store.put(source.block([1], open_events=2))
    store.drop_open_transaction()
    source.number, source.transaction = 1, 1
    store.put(source.block([3]))
    store.put(source.block([1]))
    assert numbers_in(store.get(MANY, MANY)) == [0, 1, 2, 3, 4]


def test_rollback_hands_out_again_what_was_not_acked(store: MemoryEventStore, source: Source) -> None:
    store.put(source.block([1, 1, 1, 1]))
    batches = [store.get(16, 1) for _ in range(3)]
    assert batches[0].end is not None
    store.ack(batches[0].end)
    store.rollback()
    again = store.get(MANY, MANY)
    assert numbers_in(again) == [1, 2, 3]
    assert again.start == batches[0].end


def test_taking_back_undoes_only_the_last_get(store: MemoryEventStore, source: Source) -> None:
    store.put(source.block([1, 1, 1]))
    first, _ = store.get(16, 1), store.get(16, 1)
    store.take_back()
    again = store.get(16, 1)
    assert numbers_in(again) == [1]
    assert again.start == first.end


def test_ack_frees_up_to_the_end_of_its_batch(store: MemoryEventStore, source: Source) -> None:
    store.put(source.block([1, 1]))
    store.put(source.block([1]))
    first, second = store.get(16, 1), store.get(32, 2)
    assert first.end is not None
    assert second.end is not None
    store.ack(first.end)
    assert store.metrics().fill_events == 2
    assert store.acked_position == first.end
    store.ack(second.end)
    assert store.metrics().fill_bytes == 0
    store.ack(second.end)  # The second ack has no effect.


def test_ack_of_what_was_not_handed_out_is_an_error(store: MemoryEventStore, source: Source) -> None:
    store.put(source.block([1, 1]))
    batch = store.get(16, 1)
    store.rollback()
    assert batch.end is not None
    with pytest.raises(BatchNotFoundError, match="roll back"):
        store.ack(batch.end)


def test_a_lost_connection_forgets_only_the_open_transaction(store: MemoryEventStore, source: Source) -> None:
    store.put(source.block([1], open_events=2))
    store.put(source.block([], open_events=2))
    store.drop_open_transaction()
    assert store.metrics().put_sequence == 1
    source.number, source.transaction = 1, 1  # The same events arrive again, divided differently.
    store.put(source.block([], open_events=3))
    store.put(source.block([1]))
    assert numbers_in(store.get(MANY, MANY)) == [0, 1, 2, 3, 4]


def test_the_reported_position_of_the_store_never_goes_back_admin(store: MemoryEventStore, source: Source) -> None:
    reported: list[tuple[int, int]] = []

    def look() -> None:
        figures = figures_of(StreamCounters(), store.metrics(), 0.0)
        reported.append((figures.put_sequence, figures.ack_sequence))

    store.put(source.block([1, 1]))
    first = store.get(16, 1)
    assert first.end is not None
    store.ack(first.end)
    look()
    store.put(source.block([], open_events=1))
    store.drop_open_transaction()
    look()
    store.clear()
    look()
    source.number, source.transaction = 1, 1
    store.put(source.block([1]))
    look()
    assert reported == [(2, 1), (3, 2), (3, 3), (4, 3)]


def test_clear_forgets_everything_and_starts_at_the_acked_position(store: MemoryEventStore, source: Source) -> None:
    store.put(source.block([1, 1]))
    first = store.get(16, 1)
    assert first.end is not None
    store.ack(first.end)
    store.clear()
    assert store.get(MANY, MANY).empty
    source.number, source.transaction = 1, 1
    store.put(source.block([1]))
    batch = store.get(MANY, MANY)
    assert numbers_in(batch) == [1]
    assert batch.start == first.end


def test_put_waits_while_full_and_continues_after_an_ack(kind: str, tmp_path: Path, source: Source) -> None:
    files_bytes_max = 8192 if kind == "file" else 1
    store = make_store(kind, tmp_path, events_max=4, files_bytes_max=files_bytes_max, segment_bytes=1, start=START)
    store.put(source.block([2, 2], size=4096))
    blocks = [source.block([1]), source.block([1])]

    def put_all() -> None:
        for block in blocks:
            store.put(block)

    thread = threading.Thread(target=put_all, daemon=True)
    thread.start()
    batch = store.get(MANY, MANY)
    assert thread.is_alive()
    assert store.metrics().put_sequence == 4
    assert batch.end is not None
    store.ack(batch.end)
    thread.join(DEADLINE_SECONDS)
    assert not thread.is_alive()
    assert numbers_in(store.get(MANY, MANY)) == [4, 5]


def test_get_waits_for_the_end_of_a_transaction(store: MemoryEventStore, source: Source) -> None:
    store.put(source.block([], open_events=1))
    block = source.block([1])
    thread = threading.Thread(target=store.put, args=(block,), daemon=True)
    batches = []
    waiter = threading.Thread(
        target=lambda: batches.append(store.get(MANY, MANY, timeout_seconds=DEADLINE_SECONDS)), daemon=True
    )
    waiter.start()
    thread.start()
    waiter.join(DEADLINE_SECONDS)
    thread.join(DEADLINE_SECONDS)
    assert [numbers_in(batch) for batch in batches] == [[0, 1]]


def test_a_fenced_thread_can_put_no_more_until_it_drops_the_stream_itself(
    kind: str, tmp_path: Path, source: Source
) -> None:
    """The beginning of the thread's transaction was dropped while the thread waited. If the thread could put the rest, the store would have
    a transaction without its beginning.
    """
    store = make_store(kind, tmp_path, bytes_max=1 << 20, events_max=2, files_bytes_max=1, start=START)
    store.put(source.block([2]))
    errors: list[BaseException] = []
    stages: list[str] = []
    blocks = [source.block([], open_events=1) for _ in range(2)]

    def parse() -> None:
        for block in blocks:
            try:
                stages.append("put")
                store.put(block)
            except InterruptedError as error:
                errors.append(error)
        store.drop_open_transaction()
        stages.append("new stream")

    thread = threading.Thread(target=parse, daemon=True)
    thread.start()
    waiting_until(lambda: store._putter is thread)
    store.drop_open_transaction()
    thread.join(DEADLINE_SECONDS)
    assert stages == ["put", "put", "new stream"]
    assert len(errors) == 2
    assert store.metrics().put_sequence == 2
