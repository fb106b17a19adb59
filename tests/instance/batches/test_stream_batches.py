"""Tests get, ack and rollback of batches in the scenarios of Canal's tests, over the real store and ledger."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from pathlib import Path

import pytest

from sluice.cdc_engine.contracts import Batch, TableChange, TableChangeKind
from sluice.cdc_engine.errors import (
    BatchNotFirstError,
    BatchNotFoundError,
    MetaError,
    NotContinuousError,
    NotStartedError,
    SourceConnectionError,
)
from sluice.cdc_engine.instance.batches.stream_batches import StreamBatches
from sluice.cdc_engine.meta.managers import read_ledger
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.store.memory_store import MemoryEventStore
from tests.fix_blocks import SERVER, Source, numbers_in
from tests.fix_ledgers import FileLedger, MemoryLedger, handed_out

MANY = 1 << 40
START = Position(epoch=1, file="mysql-bin.000001", offset=4, server_uuid=SERVER)


class Engine:
    """Provides the store, ledger and batches of one destination. A new object with the same directory continues from the files, as a
    process does after a restart.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.rewound: list[Position | None] = []
        self.unwilling = 0  # How often a rewind fails.
        self.begins_at: Position | None = None  # Where a rewind really begins.
        self.meta = FileLedger(directory)
        if self.meta.ledger.cursor is None:
            self.meta.update(lambda ledger: ledger.set_cursor(START))
        self.store = MemoryEventStore(directory / "spill", start=self.meta.ledger.resume_position)
        self.stream = StreamBatches("shop", self.store, self.meta, self._rewind)

    def _rewind(self, position: Position | None) -> None:
        assert position is not None
        if self.unwilling:
            self.unwilling -= 1
            raise SourceConnectionError("the parser did not stop")
        self.store.start_at(self.begins_at or position)
        self.rewound.append(position)

    def get(self, events: int = MANY) -> tuple[int, list[int]]:
        """Returns the id and the numbers of the next batch, which is then in flight."""
        batch = self.stream.get(MANY, events)
        return self.hand_out(batch), numbers_in(batch)

    def hand_out(self, batch: Batch) -> int:
        if batch.end is None:
            return -1
        end, start = batch.end, batch.start
        with contextlib.ExitStack() as undo:
            undo.callback(self.store.take_back)
            ledger = self.meta.update(lambda ledger: handed_out(ledger, end, start))
            undo.pop_all()
        return ledger.outstanding[-1].batch_id


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return Engine(tmp_path / "shop")


@pytest.fixture
def source() -> Source:
    return Source()


def test_several_batches_wait_and_are_acked_in_order(engine: Engine, source: Source) -> None:
    engine.store.put(source.block([2, 1, 1]))
    assert engine.get(2) == (1, [0, 1])
    assert engine.get(1) == (2, [2])
    assert engine.get() == (3, [3])
    with pytest.raises(BatchNotFirstError, match=r"batch 2 .* before batch 1"):
        engine.stream.ack(2)
    engine.stream.ack(1)
    engine.stream.ack(2)
    with pytest.raises(BatchNotFoundError):
        engine.stream.ack(2)
    assert [each.batch_id for each in engine.meta.ledger.outstanding] == [3]
    ledger = read_ledger(engine.directory)
    assert ledger.cursor == ledger.outstanding[0].start == engine.store.acked_position


def test_nothing_waiting_is_batch_minus_one_and_leaves_no_trace(engine: Engine, source: Source) -> None:
    engine.store.put(source.block([], open_events=1))
    before = engine.meta.ledger
    assert engine.stream.get(MANY, MANY).empty
    assert engine.meta.ledger == before


def test_after_a_rollback_the_same_comes_again_under_a_new_id(engine: Engine, source: Source) -> None:
    engine.store.put(source.block([1, 1, 1]))
    engine.get(1)
    engine.get(1)
    engine.stream.rollback()
    assert engine.get() == (3, [0, 1, 2])
    assert [each.delivery for each in engine.meta.ledger.outstanding] == [3]


def test_rollback_of_one_is_for_the_first_and_takes_all(engine: Engine, source: Source) -> None:
    engine.store.put(source.block([1, 1]))
    engine.get(1)
    engine.get(1)
    with pytest.raises(BatchNotFirstError):
        engine.stream.rollback(2)
    with pytest.raises(BatchNotFoundError):
        engine.stream.rollback(5)
    engine.stream.rollback(1)
    assert engine.meta.ledger.outstanding == ()
    assert engine.get() == (3, [0, 1])


def test_a_batch_that_is_put_back_comes_again_with_the_changes_that_followed_it(engine: Engine, source: Source) -> None:
    engine.store.put(source.block([1, 1, 1]))
    before = engine.meta.ledger
    batch = engine.stream.get(MANY, 1)
    engine.stream.get_more(batch, MANY, 1, kept=True)
    engine.stream.put_back()
    assert engine.meta.ledger == before
    assert engine.rewound == []
    assert engine.get() == (1, [0, 1, 2])


def test_a_batch_that_is_put_back_is_read_again_if_the_store_has_removed_its_changes(
    engine: Engine, source: Source
) -> None:
    engine.store.put(source.block([1, 1, 1]))
    batch = engine.stream.get(MANY, 1)
    engine.stream.get_more(batch, MANY, 1)
    engine.stream.put_back()
    assert engine.rewound == [START]
    engine.store.put(Source().block([1, 1, 1]))
    assert engine.get() == (1, [0, 1, 2])


def test_a_batch_without_changes_for_the_lake_moves_the_cursor_in_one_write(engine: Engine, source: Source) -> None:
    engine.store.put(source.block([1, 1]))
    batch = engine.stream.get(MANY, 1)
    assert batch.end is not None
    due = engine.meta.ledger.next_batch(batch.end, batch.start)
    engine.stream.skip(dataclasses.replace(due, path="staging/x"))
    ledger = read_ledger(engine.directory)
    assert (ledger.cursor, ledger.outstanding) == (batch.end, ())
    assert engine.store.acked_position == batch.end
    assert engine.get() == (2, [1])


@pytest.mark.parametrize("kept", [False, True])
def test_the_position_covers_changes_that_are_being_appended(engine: Engine, source: Source, kept: bool) -> None:
    engine.store.put(source.block([1, 1]))
    batch = engine.stream.get(MANY, 1)
    engine.hand_out(batch)
    seen: list[Position | None] = []

    def keep(part: Batch) -> bool:
        seen.extend((part.end, engine.stream.position))
        return kept

    engine.stream.append_to(batch, MANY, MANY, keep)
    end, during = seen
    assert during == end != batch.end
    assert engine.stream.position == (end if kept else batch.end)


def test_parts_of_a_batch_ascend(engine: Engine, source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.store.put(source.block([1, 1]))
    first = engine.stream.get(MANY, 1)
    monkeypatch.setattr(engine.store, "get", lambda *_: first)
    with pytest.raises(NotContinuousError, match="cannot follow the changes up to"):
        engine.stream.get_more(first, MANY, MANY, kept=True)


def test_a_full_ring_takes_the_next_block_after_an_ack(tmp_path: Path, source: Source) -> None:
    """In Canal's ring of 8, the ninth put waits until an ack."""
    meta = MemoryLedger()
    meta.update(lambda ledger: ledger.set_cursor(START))
    store = MemoryEventStore(tmp_path, events_max=8, start=START)
    stream = StreamBatches("shop", store, meta, lambda _: pytest.fail("the store has everything"))
    store.put(source.block([1] * 8))
    thread = threading.Thread(target=store.put, args=(source.block([1]),), daemon=True)
    thread.start()
    end = stream.get(MANY, 3).end
    assert end is not None
    batch = meta.update(lambda ledger: handed_out(ledger, end)).outstanding[0]
    assert thread.is_alive()
    stream.ack(batch.batch_id)
    thread.join(10.0)
    assert not thread.is_alive()


def test_a_batch_the_ledger_could_not_keep_was_never_handed_out(engine: Engine, source: Source) -> None:
    engine.store.put(source.block([1, 1]))
    assert engine.get(1) == (1, [0])
    (engine.directory / "meta.tmp").mkdir()
    with pytest.raises(MetaError):
        engine.get(1)
    with pytest.raises(MetaError):
        engine.stream.ack(1)
    (engine.directory / "meta.tmp").rmdir()
    assert engine.get(1) == (2, [1])
    engine.stream.ack(1)
    engine.stream.ack(2)
    assert engine.store.metrics().fill_events == 0


def test_after_a_restart_staged_batches_still_wait_and_can_be_acked(engine: Engine, source: Source) -> None:
    engine.store.put(source.block([1, 1]))
    engine.get(1)
    again = Engine(engine.directory)
    source.number, source.transaction = 1, 1
    again.store.put(source.block([1]))
    again.stream.ack(1)
    assert again.get() == (2, [1])
    again.stream.ack(2)
    assert again.meta.ledger.cursor == again.store.acked_position


def test_after_a_restart_a_rollback_reads_from_the_cursor_again(engine: Engine, source: Source) -> None:
    engine.store.put(source.block([1, 1]))
    engine.get(1)
    again = Engine(engine.directory)
    again.stream.rollback()
    assert again.rewound == [START]
    assert again.store.acked_position == START
    again.store.put(Source().block([1, 1]))
    assert again.get() == (2, [0, 1])


def test_fault_a_stream_that_stands_elsewhere_than_the_ledger_is_read_again_by_itself(
    engine: Engine, source: Source
) -> None:
    engine.store.put(source.block([1]))
    engine.meta.update(lambda ledger: ledger.set_cursor(dataclasses.replace(START, offset=5)))
    assert engine.get() == (-1, [])
    assert engine.rewound == [dataclasses.replace(START, offset=5)]
    assert engine.meta.ledger.outstanding == ()


def test_fault_a_stream_that_reconnects_without_success_reports_it_and_continues_to_try(
    engine: Engine, source: Source
) -> None:
    engine.meta.update(lambda ledger: ledger.set_cursor(dataclasses.replace(START, offset=5)))
    engine.begins_at = START  # This position is used whatever is requested.
    for tried in range(1, 4):
        engine.store.start_at(START)
        engine.store.put(Source().block([1]))
        if tried == 1:
            assert engine.get() == (-1, [])
        else:
            with pytest.raises(NotContinuousError, match="`sluice down` and `sluice up`"):
                engine.get()
        assert len(engine.rewound) == tried


def test_fault_a_rewind_that_failed_is_done_before_anything_more_is_got(engine: Engine, source: Source) -> None:
    engine.store.put(source.block([2]))
    assert engine.get()[0] == 1
    engine = Engine(engine.directory)
    engine.unwilling = 2
    for tried in (engine.stream.rollback, engine.get):
        with pytest.raises(SourceConnectionError):
            tried()
    assert engine.meta.ledger.outstanding == ()
    assert engine.get() == (-1, [])
    assert engine.rewound == [START]


def test_an_ack_does_not_wait_for_a_get(engine: Engine, source: Source) -> None:
    engine.store.put(source.block([1]))
    engine.get()
    got: list[int] = []
    thread = threading.Thread(
        target=lambda: got.extend(numbers_in(engine.stream.get(MANY, MANY, timeout_seconds=30.0)))
    )
    thread.start()
    engine.stream.ack(1)
    assert got == []
    engine.store.put(source.block([1]))
    thread.join(10.0)
    assert got == [1]


def test_ddl_a_batch_does_not_continue_over_a_table_that_took_another_name(engine: Engine, source: Source) -> None:
    renamed = TableChange(
        kind=TableChangeKind.SCHEMA, database="shop", table="a", order_key=1, time_us=0, renamed_from="shop.b"
    )
    engine.store.put(source.block([1]))
    engine.store.put(source.block([1]))
    engine.store.put(source.block([0], changes=(renamed,)))
    engine.store.put(source.block([1]))
    first = engine.stream.get(MANY, 1)
    more = engine.stream.get_more(first, MANY, MANY)
    assert (numbers_in(first), numbers_in(more)) == ([0], [1])
    assert engine.stream.get_more(more, MANY, MANY).empty
    engine.stream.ack(engine.hand_out(dataclasses.replace(more, start=first.start)))
    alone = engine.stream.get(MANY, MANY)
    assert alone.slices[0].changes == (renamed,)
    assert engine.stream.get_more(alone, MANY, MANY).empty
    engine.stream.ack(engine.hand_out(alone))
    assert engine.get()[1] == [2]


def test_a_stopped_destination_hands_out_and_settles_nothing(engine: Engine, source: Source) -> None:
    engine.store.put(source.block([1]))
    batch = engine.stream.get(MANY, MANY)
    number = engine.hand_out(batch)
    engine.stream.stop()
    for call in (
        lambda: engine.stream.get(MANY, MANY),
        lambda: engine.stream.get_more(batch, MANY, MANY),
        lambda: engine.stream.append_to(batch, MANY, MANY, lambda _: True),
        lambda: engine.stream.ack(number),
        lambda: engine.stream.skip(engine.meta.ledger.outstanding[0]),
        engine.stream.put_back,
        engine.stream.rollback,
        engine.stream.read_again,
    ):
        with pytest.raises(NotStartedError, match="start the destination first"):
            call()
    assert [each.batch_id for each in engine.meta.ledger.outstanding] == [number]
