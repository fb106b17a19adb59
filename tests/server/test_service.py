"""Tests the service with Canal's scenarios on batches of whole transactions, over the real store and ledger."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import pytest

from sluice.cdc_engine.contracts import ClientIdentity, TableChange, TableChangeKind
from sluice.cdc_engine.errors import (
    BatchNotFirstError,
    BatchNotFoundError,
    CanalServiceError,
    MetaError,
    NotContinuousError,
    NotStartedError,
    NotSubscribedError,
    OutstandingBatchError,
    SourceConnectionError,
    UnknownDestinationError,
)
from sluice.cdc_engine.meta.managers import read_ledger
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.server.service import CanalService
from sluice.cdc_engine.store.memory_store import MemoryEventStore
from tests.fix_blocks import SERVER, Source, numbers_in
from tests.fix_ledgers import CLIENT, FileLedger, MemoryLedger

MANY = 1 << 40
START = Position(epoch=1, file="mysql-bin.000001", offset=4, server_uuid=SERVER)
UNSUBSCRIBED = ClientIdentity(destination="shop", client_id=7)


class Engine:
    """One destination's store, ledger and service, as a process would start them again from the files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.rewound: list[Position | None] = []
        self.filters: list[str] = []
        self.unwilling = 0  # How often a rewind fails.
        self.begins_at: Position | None = None  # Where a rewind really begins.
        self.meta = FileLedger(directory)
        if self.meta.ledger.cursor is None:
            self.meta.update(lambda ledger: ledger.set_cursor(START))
        self.store = MemoryEventStore(directory / "spill", start=self.meta.ledger.resume_position)
        self.service = CanalService()
        self.service.start("shop", self.store, self.meta, rewind=self._rewind, filter_changed=self.filters.append)

    def _rewind(self, position: Position | None) -> None:
        assert position is not None
        if self.unwilling:
            self.unwilling -= 1
            raise SourceConnectionError("the parser did not stop")
        self.store.start_at(self.begins_at or position)
        self.rewound.append(position)

    def get(self, events: int = MANY) -> tuple[int, list[int]]:
        batch = self.service.get_without_ack(CLIENT, MANY, events)
        return batch.batch_id, numbers_in(batch)


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    engine = Engine(tmp_path / "shop")
    engine.service.subscribe(CLIENT)
    return engine


@pytest.fixture
def source() -> Source:
    return Source()


def test_several_batches_wait_and_are_acked_in_order(engine: Engine, source: Source) -> None:
    engine.store.put(source.block([2, 1, 1]))
    assert engine.get(2) == (1, [0, 1])
    assert engine.get(1) == (2, [2])
    assert engine.get() == (3, [3])
    with pytest.raises(BatchNotFirstError, match=r"batch 2 .* before batch 1"):
        engine.service.ack(CLIENT, 2)
    engine.service.ack(CLIENT, 1)
    engine.service.ack(CLIENT, 2)
    with pytest.raises(BatchNotFoundError):
        engine.service.ack(CLIENT, 2)
    assert [each.batch_id for each in engine.service.outstanding(CLIENT)] == [3]
    ledger = read_ledger(engine.directory)
    assert ledger.cursor == ledger.outstanding[0].start == engine.store.acked_position


def test_nothing_waiting_is_batch_minus_one_and_leaves_no_trace(engine: Engine, source: Source) -> None:
    engine.store.put(source.block([], open_events=1))
    before = engine.meta.ledger
    assert engine.service.get_without_ack(CLIENT, MANY, MANY).empty
    assert engine.service.get(CLIENT, MANY, MANY).batch_id == -1
    engine.service.ack(CLIENT, -1)
    assert engine.meta.ledger == before


def test_after_a_rollback_the_same_comes_again_under_a_new_id(engine: Engine, source: Source) -> None:
    engine.store.put(source.block([1, 1, 1]))
    engine.get(1)
    engine.get(1)
    engine.service.rollback(CLIENT)
    assert engine.get() == (3, [0, 1, 2])
    assert [each.delivery for each in engine.service.outstanding(CLIENT)] == [3]


def test_rollback_of_one_is_for_the_first_and_takes_all(engine: Engine, source: Source) -> None:
    engine.store.put(source.block([1, 1]))
    engine.get(1)
    engine.get(1)
    with pytest.raises(BatchNotFirstError):
        engine.service.rollback(CLIENT, 2)
    with pytest.raises(BatchNotFoundError):
        engine.service.rollback(CLIENT, 5)
    engine.service.rollback(CLIENT, 1)
    assert engine.service.outstanding(CLIENT) == ()
    assert engine.get() == (3, [0, 1])


def test_an_auto_acking_get_is_refused_while_batches_wait(engine: Engine, source: Source) -> None:
    engine.store.put(source.block([1, 1]))
    engine.get(1)
    with pytest.raises(OutstandingBatchError, match="has not acked batch 1"):
        engine.service.get(CLIENT, MANY, MANY)
    engine.service.ack(CLIENT, 1)
    batch = engine.service.get(CLIENT, MANY, MANY)
    assert (batch.batch_id, numbers_in(batch)) == (2, [1])
    assert engine.service.outstanding(CLIENT) == ()
    assert engine.meta.ledger.cursor == batch.end == engine.store.acked_position


def test_a_full_ring_takes_the_next_block_after_an_ack(tmp_path: Path, source: Source) -> None:
    """In Canal's ring of 8, the ninth put waits until an ack."""
    meta = MemoryLedger()
    meta.update(lambda ledger: ledger.set_cursor(START))
    store = MemoryEventStore(tmp_path, events_max=8, start=START)
    service = CanalService({"shop": (store, meta)})
    service.subscribe(CLIENT)
    store.put(source.block([1] * 8))
    thread = threading.Thread(target=store.put, args=(source.block([1]),), daemon=True)
    thread.start()
    batch = service.get_without_ack(CLIENT, MANY, 3)
    assert thread.is_alive()
    service.ack(CLIENT, batch.batch_id)
    thread.join(10.0)
    assert not thread.is_alive()


def test_calls_for_what_is_not_there_have_their_own_errors(engine: Engine) -> None:
    with pytest.raises(UnknownDestinationError):
        engine.service.subscribe(ClientIdentity(destination="nowhere"))
    with pytest.raises(NotStartedError):
        CanalService(known=["shop"]).subscribe(CLIENT)
    for call in (
        lambda: engine.service.get(UNSUBSCRIBED, 1, 1),
        lambda: engine.service.get_without_ack(UNSUBSCRIBED, 1, 1),
        lambda: engine.service.ack(UNSUBSCRIBED, 1),
        lambda: engine.service.rollback(UNSUBSCRIBED),
    ):
        with pytest.raises(NotSubscribedError):
            call()
    engine.service.stop("shop")
    with pytest.raises(NotStartedError):
        engine.service.get(CLIENT, 1, 1)


def test_a_destination_has_one_reader(engine: Engine) -> None:
    with pytest.raises(CanalServiceError, match="client 1001 reads it"):
        engine.service.subscribe(UNSUBSCRIBED)
    engine.service.unsubscribe(CLIENT)
    engine.service.subscribe(UNSUBSCRIBED)
    assert engine.meta.ledger.clients == (UNSUBSCRIBED,)


def test_a_consumer_that_unsubscribes_leaves_its_batches_to_the_next(engine: Engine, source: Source) -> None:
    engine.store.put(source.block([1, 1]))
    engine.get()
    engine.service.unsubscribe(CLIENT)
    engine.service.unsubscribe(CLIENT)
    assert engine.meta.ledger.outstanding == ()
    engine.service.subscribe(UNSUBSCRIBED)
    assert numbers_in(engine.service.get_without_ack(UNSUBSCRIBED, MANY, MANY)) == [0, 1]


def test_a_clients_filter_is_shown_now_and_after_a_restart(engine: Engine) -> None:
    engine.service.subscribe(ClientIdentity(destination="shop", filter="a"))
    assert engine.filters == ["", "a"]
    assert Engine(engine.directory).filters == ["a"]
    engine.service.unsubscribe(CLIENT)
    assert engine.filters == ["", "a", ""]


def test_a_batch_the_ledger_could_not_keep_was_never_handed_out(engine: Engine, source: Source) -> None:
    engine.store.put(source.block([1, 1]))
    assert engine.get(1) == (1, [0])
    (engine.directory / "meta.tmp").mkdir()
    with pytest.raises(MetaError):
        engine.get(1)
    with pytest.raises(MetaError):
        engine.service.ack(CLIENT, 1)
    (engine.directory / "meta.tmp").rmdir()
    assert engine.get(1) == (2, [1])
    engine.service.ack(CLIENT, 1)
    engine.service.ack(CLIENT, 2)
    assert engine.store.metrics().fill_events == 0


def test_after_a_restart_staged_batches_still_wait_and_can_be_acked(engine: Engine, source: Source) -> None:
    engine.store.put(source.block([1, 1]))
    engine.get(1)
    again = Engine(engine.directory)
    source.number, source.transaction = 1, 1
    again.store.put(source.block([1]))
    again.service.ack(CLIENT, 1)
    assert again.get() == (2, [1])
    again.service.ack(CLIENT, 2)
    assert again.meta.ledger.cursor == again.store.acked_position


def test_after_a_restart_a_rollback_reads_from_the_cursor_again(engine: Engine, source: Source) -> None:
    engine.store.put(source.block([1, 1]))
    engine.get(1)
    again = Engine(engine.directory)
    again.service.rollback(CLIENT)
    assert again.rewound == [START]
    assert again.store.acked_position == START
    again.store.put(Source().block([1, 1]))
    assert again.get() == (2, [0, 1])


def test_without_a_way_to_rewind_such_a_rollback_stops_the_destination(engine: Engine, source: Source) -> None:
    engine.store.put(source.block([1, 1]))
    engine.get(1)
    meta = FileLedger(engine.directory)
    service = CanalService({"shop": (MemoryEventStore(engine.directory, start=meta.ledger.resume_position), meta)})
    with pytest.raises(NotStartedError, match="are no longer in memory: restart the destination"):
        service.rollback(CLIENT)
    assert meta.ledger.outstanding == ()
    with pytest.raises(NotStartedError):
        service.get(CLIENT, 1, 1)


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
    for tried in (engine.service.rollback, lambda _: engine.get()):
        with pytest.raises(SourceConnectionError):
            tried(CLIENT)
    assert engine.meta.ledger.outstanding == ()
    assert engine.get() == (-1, [])
    assert engine.rewound == [START]


def test_an_ack_does_not_wait_for_a_get(engine: Engine, source: Source) -> None:
    engine.store.put(source.block([1]))
    engine.get()
    got: list[int] = []
    thread = threading.Thread(
        target=lambda: got.append(engine.service.get_without_ack(CLIENT, MANY, MANY, timeout_seconds=30.0).batch_id)
    )
    thread.start()
    engine.service.ack(CLIENT, 1)
    assert got == []
    engine.store.put(source.block([1]))
    thread.join(10.0)
    assert got == [2]


def test_ddl_a_batch_does_not_continue_over_a_table_that_took_another_name(engine: Engine, source: Source) -> None:
    renamed = TableChange(
        kind=TableChangeKind.SCHEMA, database="shop", table="a", order_key=1, time_us=0, renamed_from="shop.b"
    )
    engine.store.put(source.block([1]))
    engine.store.put(source.block([1]))
    engine.store.put(source.block([0], changes=(renamed,)))
    engine.store.put(source.block([1]))
    first = engine.service.get_without_ack(CLIENT, MANY, 1)
    more = engine.service.get_more(CLIENT, first, MANY, MANY)
    assert (numbers_in(first), numbers_in(more)) == ([0], [1])
    assert engine.service.get_more(CLIENT, more, MANY, MANY).empty
    engine.service.ack(CLIENT, first.batch_id)
    alone = engine.service.get_without_ack(CLIENT, MANY, MANY)
    assert alone.slices[0].changes == (renamed,)
    assert engine.service.get_more(CLIENT, alone, MANY, MANY).empty
    engine.service.ack(CLIENT, alone.batch_id)
    assert engine.get()[1] == [2]
