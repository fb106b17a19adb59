"""Tests the sink: which row events it removes, which blocks it joins, and how empty transactions still move the cursor."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.batch_manifest.values import Cascade
from sluice.cdc_engine.binlog.block import compact, end_position, keep_events, last_transaction, retained_bytes
from sluice.cdc_engine.contracts import Block, TableChange, TableChangeKind, TableVersion
from sluice.cdc_engine.sink.empty_transactions import EVENT_TIME_US_MAX, SKIPPED_TRANSACTIONS_MAX, Thinning
from sluice.cdc_engine.sink.event_sink import CapturedTables, EventSink, dropped_uncaptured
from sluice.cdc_engine.sink.table_filter import TableFilter
from sluice.cdc_engine.store.memory_store import MemoryEventStore
from sluice.cdc_engine.store.window.positions import WindowPosition
from sluice.cdc_engine.store.window.window import Window
from tests.fix_blocks import AUDIT, ORDERS, SECOND_US, Source, gtid_set, numbers_in, numbers_of
from tests.store.fix_stores import START

MANY = 1 << 40


class RecordingStore(MemoryEventStore):
    """A real store that also records the blocks that the sink puts into it."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.blocks: list[Block] = []

    def put(self, block: Block) -> None:
        super().put(block)
        self.blocks.append(block)


OTHER = TableVersion(database="shop", table="other", columns=(), key=(), version="c")


@pytest.fixture
def store(tmp_path: Path) -> RecordingStore:
    return RecordingStore(tmp_path / "spill")


@pytest.fixture
def sink(store: RecordingStore) -> EventSink:
    return EventSink(store, TableFilter(r"shop\..*", r"shop\.audit"))


@pytest.fixture
def source() -> Source:
    return Source(time_us=1000 * SECOND_US)


@pytest.mark.found
@pytest.mark.parametrize("keeps_stopped", [True, False])
def test_rows_of_a_table_that_stopped_for_the_lake_are_the_other_readers(
    store: RecordingStore, source: Source, *, keeps_stopped: bool
) -> None:
    """Defect 17: if a table was stopped for the lake, its rows were missing in the streams of consumers too. The store keeps these rows
    only if consumers read the store, so that otherwise they use no memory.
    """
    source.tables.append(dataclasses.replace(ORDERS, stopped=True))
    others = Window(START, bytes_max=MANY)
    sink = EventSink(store, TableFilter(r"shop\..*", r"shop\.audit"), others, keeps_stopped=keeps_stopped)
    sink.accept(source.block([2, 2], table=[0, 2, 2, 1]))
    sink.accept(source.block([2], table=[2, 2]))
    reading = others.read(WindowPosition(START), MANY, MANY)
    assert reading is not None
    assert [number for each in reading.pieces for number in numbers_of(each.block)] == [0, 1, 2, 4, 5]
    batch = store.get(MANY, MANY)
    assert numbers_in(batch) == ([0, 1, 2, 4, 5] if keeps_stopped else [0])
    assert store.metrics().fill_bytes == 16 * batch.event_count


def test_only_captured_tables_pass(sink: EventSink, store: RecordingStore, source: Source) -> None:
    sink.accept(source.block([2, 1, 2], open_events=1, table=[0, 1, 1, 1, 0, 1]))
    batch = store.get(MANY, MANY)
    assert numbers_in(batch) == [0, 4]
    assert batch.end is not None
    assert batch.end.gtid_set == gtid_set(3)


def test_a_block_that_is_all_captured_is_handed_on_as_it_is(
    sink: EventSink, store: RecordingStore, source: Source
) -> None:
    block = source.block([2])
    sink.accept(block)
    assert store.blocks == [block]


def test_a_buffer_of_mostly_dropped_rows_is_compacted(sink: EventSink, store: RecordingStore, source: Source) -> None:
    sink.accept(source.block([10], table=[1, 1, 0, 1, 1, 1, 0, 1, 1, 0], size=100))
    (block,) = store.blocks
    assert block.buffer.nbytes == block.byte_count == 300
    assert numbers_of(block) == [2, 6, 9]


def test_a_window_on_a_large_buffer_does_not_keep_it_alive(
    sink: EventSink, store: RecordingStore, source: Source
) -> None:
    block = source.block([2])
    large = np.zeros(1 << 20, np.uint8)
    large[: len(block.buffer)] = block.buffer
    object.__setattr__(block, "buffer", large[: len(block.buffer)])
    assert retained_bytes(block) == 1 << 20
    sink.accept(block)
    assert retained_bytes(store.blocks[0]) == 32


def test_a_table_is_judged_again_when_the_tables_are_others(
    sink: EventSink, store: RecordingStore, source: Source
) -> None:
    sink.accept(source.block([1], table=0))
    source.tables.append(TableVersion(database="other", table="orders", columns=()))
    sink.accept(source.block([2], table=[2, 0]))
    source.tables = list(reversed(source.tables))
    sink.accept(source.block([3], table=[0, 1, 2]))
    assert numbers_in(store.get(MANY, MANY)) == [0, 2, 5]


def test_a_consumers_own_stream_keeps_the_rows_that_the_live_one_keeps(source: Source) -> None:
    """A consumer's position within a transaction is a number of row events. So both streams must keep the same row events, including those
    of tables that are read only because of foreign keys.
    """
    cascade = Cascade(name="c", parent=("shop", "audit"), child=("shop", "orders"), columns=("a",), referenced=("id",))
    source.tables = [ORDERS, dataclasses.replace(AUDIT, watched=True, cascades=(cascade,)), OTHER]
    block, tables = source.block([6], table=[1, 2, 0, 0, 2, 1]), CapturedTables([TableFilter(r"shop\.orders")])
    kept = dropped_uncaptured(block, tables)
    live = tables.mask(block.tables)[block.event_table]
    assert numbers_of(kept) == [0, 2, 3, 5] == np.flatnonzero(live).tolist()


def test_table_changes_pass_if_their_table_does(sink: EventSink, store: RecordingStore, source: Source) -> None:
    changes = tuple(
        TableChange(kind=TableChangeKind.TRUNCATE, database="shop", table=table, order_key=1, time_us=0)
        for table in ("orders", "audit")
    )
    sink.accept(source.block([0], changes=changes))
    assert store.get(MANY, MANY).slices[0].changes == changes[:1]


def test_empty_transactions_are_thinned_out_by_event_time(
    sink: EventSink, store: RecordingStore, source: Source
) -> None:
    for _ in range(3):
        sink.accept(source.block([1, 1], table=1))
        source.time_us += 2 * SECOND_US
    # The first empty block goes to the store, reduced to its last transaction.
    assert [block.start_gtid_set for block in store.blocks] == [gtid_set(1)]
    sink.accept(source.block([1], table=1))
    assert len(store.blocks) == 2
    assert store.put_position is not None
    assert store.put_position.gtid_set == gtid_set(7)


def test_empty_transactions_are_thinned_out_by_number(sink: EventSink, store: RecordingStore, source: Source) -> None:
    for _ in range(SKIPPED_TRANSACTIONS_MAX // 1024 + 1):
        sink.accept(source.block([1] * 1024, table=1))
    assert len(store.blocks) == 1
    sink.accept(source.block([1], table=1))
    assert len(store.blocks) == 2


def test_the_end_of_a_transaction_whose_rows_passed_is_never_thinned_out(
    sink: EventSink, store: RecordingStore, source: Source
) -> None:
    sink.accept(source.block([1], table=1))
    sink.accept(source.block([], open_events=2))
    sink.accept(source.block([], open_events=2, table=1))
    sink.accept(source.block([0, 0]))
    assert numbers_in(store.get(1, 1)) == []
    batch = store.get(1, 1)
    assert numbers_in(batch) == [1, 2]
    assert batch.end is not None
    assert batch.end.gtid_set == gtid_set(2)


def test_an_idle_stream_moves_the_cursor_to_its_end(sink: EventSink, store: RecordingStore, source: Source) -> None:
    sink.accept(source.block([1], table=1))
    sink.accept(source.block([1], table=1))
    sink.idle()
    sink.idle()
    assert len(store.blocks) == 2
    assert store.put_position is not None
    assert store.put_position.gtid_set == gtid_set(2)


def test_after_an_interruption_the_transaction_comes_again_whole(
    sink: EventSink, store: RecordingStore, source: Source
) -> None:
    sink.accept(source.block([1], open_events=2))
    sink.interrupt()
    source.number, source.transaction = 1, 1
    sink.accept(source.block([3]))
    assert numbers_in(store.get(MANY, MANY)) == [0, 1, 2, 3]


def test_thinning_counts_time_in_both_directions() -> None:
    state = Thinning(100 * SECOND_US, 0, "binlog.000001")
    assert not state.after(100 * SECOND_US - EVENT_TIME_US_MAX, 1, state.file)[0]
    assert state.after(100 * SECOND_US - EVENT_TIME_US_MAX - 1, 1, state.file)[0]
    assert state.after(100 * SECOND_US, SKIPPED_TRANSACTIONS_MAX + 1, state.file)[0]


def test_another_file_moves_the_cursor_though_no_time_has_passed() -> None:
    state = Thinning(100 * SECOND_US, 0, "binlog.000001")
    due, after = state.after(state.last_time_us, 1, "binlog.000002")
    assert due
    assert not after.after(state.last_time_us, 1, "binlog.000002")[0]


TRANSACTIONS = st.lists(st.integers(0, 4), max_size=6)


@given(TRANSACTIONS, st.integers(0, 3), st.data())
def test_dropping_and_compacting_keep_every_other_event_and_its_transaction(
    transactions: list[int], open_events: int, data: st.DataObject
) -> None:
    block = Source().block(transactions, open_events)
    mask = np.array(
        data.draw(st.lists(st.booleans(), min_size=block.event_count, max_size=block.event_count)), np.bool_
    )
    kept = compact(keep_events(block, mask))
    assert numbers_of(kept) == np.flatnonzero(mask).tolist()
    before = [0, *block.transaction_events.tolist()]
    per_transaction = [int(mask[a:b].sum()) for a, b in itertools.pairwise(before)]
    assert np.diff(kept.transaction_events, prepend=0).tolist() == per_transaction
    assert kept.buffer.nbytes == kept.byte_count
    assert kept.event_position.tolist() == block.event_position[mask].tolist()


@given(st.integers(1, 5), st.integers(0, 5))
def test_the_last_transaction_ends_where_the_block_does(count: int, before: int) -> None:
    block = Source(transaction=before).block([0] * count)
    last = last_transaction(block)
    assert last.transaction_count == 1
    assert end_position(last, 0) == end_position(block, count - 1)
