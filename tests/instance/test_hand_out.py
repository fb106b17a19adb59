"""A batch that is staged later than its caller waits for is handed out once; one that nobody has begun takes along what came since."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sluice.cdc_engine.contracts import Batch, OutstandingBatch, Staged, StoppedTable
from sluice.cdc_engine.errors import (
    BatchNotFoundError,
    HandlerError,
    LeaseLostError,
    MetaError,
    SluiceError,
    StagingError,
)
from sluice.cdc_engine.handlers.calls import Calls
from sluice.cdc_engine.instance.hand_out import GET_SECONDS, MORE_SECONDS_MIN, BatchLimits, HandOut, more_seconds
from sluice.cdc_engine.meta.ledger import Ledger
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.server.service import CanalService
from sluice.cdc_engine.staging.batches import StagedBatches
from sluice.cdc_engine.states import TableState
from sluice.cdc_engine.store.memory_store import MemoryEventStore
from tests.fix_blocks import Source, numbers_in
from tests.fix_ledgers import CLIENT, MemoryLedger
from tests.handlers.fix_handlers import Remembering
from tests.waiting import wait_for

START = Position(epoch=1, file="mysql-bin.000001", offset=4, server_uuid="u")


class Late:
    """A hand-out whose staging waits until it may end."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.may_end = folder, threading.Event()
        self.meta = MemoryLedger()
        self.meta.update(lambda ledger: ledger.set_cursor(START).subscribe(CLIENT))
        self.store, self.source = (
            MemoryEventStore(folder / "spill", start=START),
            Source(time_us=int(time.time() * 1e6)),
        )
        service = CanalService()
        service.start("shop", self.store, self.meta)
        limits = BatchLimits(bytes_max=1 << 20, events_max=1000)
        self.audit = Remembering()
        self.staged: list[list[int]] = []
        self.trouble: SluiceError | None = None
        self.stops: tuple[StoppedTable, ...] = ()  # of what is staged in several parts
        self.stops_at_once = False  # also of one part
        self.made = functools.partial(
            HandOut, CLIENT, service, self.meta, stage=self.stage, limits=limits, directory=folder
        )
        self.hand_out = self.made(handlers=self.calls())

    def calls(self) -> Calls:
        return Calls("shop", self.folder, [("audit", self.audit)])

    def stage(self, batch: Batch, record: OutstandingBatch, more: Callable[[Batch], Batch]) -> Staged:
        self.may_end.wait()
        parts = [batch]
        while not parts[-1].empty:
            parts.append(more(parts[-1]))
        assert parts[-2].end == record.end
        self.staged.append([number for part in parts[:-1] for number in numbers_in(part)])
        if self.trouble is not None:
            raise self.trouble
        path = self.folder / str(record.delivery)
        path.mkdir()
        return Staged(
            path=path,
            rows=1,
            size_bytes=1,
            tables=("shop.orders",),
            first_commit_time_us=1,
            stopped=self.stops if self.stops_at_once or len(parts) > 2 else (),
        )

    def staged_late(self) -> OutstandingBatch:
        """The next batch, whose caller has not waited for it."""
        self.store.put(self.source.block([1]))
        assert self.hand_out.next(0.0) is None
        assert not self.hand_out.while_idle(lambda: pytest.fail("a batch is being staged"))
        self.may_end.set()
        return wait_for("the batch is staged", self.hand_out.outstanding)


@pytest.fixture
def late(tmp_path: Path) -> Iterator[Late]:
    made = Late(tmp_path)
    yield made
    made.may_end.set()
    made.hand_out.close()


def test_a_batch_that_was_settled_is_not_handed_out_again(late: Late) -> None:
    batch = late.staged_late()
    late.hand_out.ack(batch)
    assert late.hand_out.next(1.0) is None


def test_nothing_is_done_beside_a_batch_that_is_out(late: Late) -> None:
    batch = late.staged_late()
    assert not late.hand_out.while_idle(lambda: pytest.fail("a batch is out"))
    late.hand_out.ack(batch)
    done: list[str] = []
    assert late.hand_out.while_idle(lambda: done.append("now"))
    assert done == ["now"]


@pytest.fixture
def quick(late: Late) -> Late:
    """One whose staging does not wait."""
    late.may_end.set()
    late.store.put(late.source.block([1]))
    return late


def test_handlers_are_called_around_a_batch_before_the_next(quick: Late) -> None:
    batch = quick.hand_out.next(60.0)
    assert batch is not None
    assert quick.audit.calls == [("before", 1, "")]
    assert quick.audit.seen[0].folder.is_dir()
    quick.hand_out.rollback(batch)  # its files are none that could be merged: it is cut anew
    again = quick.hand_out.next(60.0)
    assert again is not None
    quick.hand_out.ack(again)
    assert quick.hand_out.next(60.0) is None
    assert quick.audit.calls == [
        ("before", 1, ""), ("retry", 1, "its run did not merge it"), ("before", 2, ""), ("after", 2, "")
    ]  # fmt: skip


def test_a_batch_waits_for_a_handler_that_fails_before_it(quick: Late) -> None:
    quick.audit.failing = "before"
    for delivery in (1, 2):
        with pytest.raises(HandlerError, match=f"the handler audit failed in `before` of delivery {delivery}"):
            quick.hand_out.next(60.0)
        assert quick.hand_out.outstanding() is None
        assert not any(quick.folder.glob("[0-9]*"))
        assert quick.hand_out.trouble is not None
        assert quick.hand_out.trouble.code == "HANDLER_FAILED"
    quick.audit.failing = ""
    batch = quick.hand_out.next(60.0)
    assert batch is not None
    assert batch.start.offset == START.offset
    assert quick.hand_out.trouble is None


@pytest.mark.parametrize("killed", [False, True])
def test_the_next_batch_waits_for_a_handler_that_fails_after_one(quick: Late, killed: bool) -> None:
    batch = quick.hand_out.next(60.0)
    assert batch is not None
    quick.audit.failing = "after"
    quick.hand_out.ack(batch)
    quick.store.put(quick.source.block([1]))
    if killed:
        quick.hand_out.close()
        quick.hand_out = quick.made(handlers=quick.calls())
    with pytest.raises(HandlerError, match="the handler audit failed in `after` of delivery 1"):
        quick.hand_out.next(60.0)
    assert quick.hand_out.outstanding() is None
    quick.audit.failing = ""
    assert quick.hand_out.next(60.0) is not None
    assert quick.audit.calls == [("before", 1, ""), ("after", 1, ""), ("after", 1, ""), ("before", 2, "")]


def test_a_batch_that_comes_again_waits_for_a_handler_that_fails_of_that(quick: Late) -> None:
    batch = quick.hand_out.next(60.0)
    assert batch is not None
    quick.audit.failing = "retry"
    quick.hand_out.stop_tables(batch, {"shop.orders": ("MERGE_FAILED", "why")})
    assert quick.hand_out.outstanding() is not None
    with pytest.raises(HandlerError, match="the handler audit failed in `retry` of delivery 1"):
        quick.hand_out.next(60.0)
    quick.audit.failing = ""
    again = quick.hand_out.next(60.0)
    assert again is not None
    assert again.delivery == 2
    assert quick.audit.calls[1:] == [("retry", 1, "it continues without shop.orders")] * 2


def test_the_longer_a_batch_was_staged_the_longer_it_waits_for_more() -> None:
    assert more_seconds(0.0) == MORE_SECONDS_MIN
    assert MORE_SECONDS_MIN < more_seconds(1.0) < GET_SECONDS
    assert more_seconds(60.0) == GET_SECONDS


class Young(Late):
    """One without handlers, whose staging does not wait, with a batch of the change 0 out."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.may_end.set()
        self.hand_out.close()
        self.hand_out = self.made()
        self.first = self.next_of_one()

    def next_of_one(self) -> OutstandingBatch:
        self.come(1)
        return wait_for("a batch is staged", lambda: self.hand_out.next(60.0))

    def come(self, changes: int) -> None:
        """So many, a transaction each."""
        self.store.put(self.source.block([1] * changes))


@pytest.fixture
def young(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Young]:
    monkeypatch.setattr(StagedBatches, "is_whole", lambda *_: True)
    made = Young(tmp_path)
    yield made
    made.hand_out.close()


def test_a_batch_grows_by_what_came_since_it_was_cut(young: Young) -> None:
    young.come(2)
    longer = young.hand_out.append_to(young.first)
    assert young.hand_out.outstanding() == longer
    assert (longer.delivery, longer.start) == (2, young.first.start)
    assert longer.end.offset > young.first.end.offset
    assert young.staged == [[0], [0, 1, 2]]
    assert (young.folder / young.first.path).is_dir(), "a run may still read it"
    with pytest.raises(BatchNotFoundError):
        young.hand_out.ack(young.first)
    young.hand_out.ack(longer)
    assert not (young.folder / young.first.path).exists()
    young.next_of_one()
    assert young.staged[-1] == [3], "nothing twice, nothing left out"
    assert young.meta.ledger.given_up is None


def test_a_batch_grows_once_and_not_where_nothing_came(young: Young) -> None:
    assert young.hand_out.append_to(young.first) == young.first
    young.come(1)
    assert young.hand_out.append_to(young.first) == young.first, "its run may have begun it by now"
    assert young.staged == [[0]]


@pytest.mark.parametrize("again", ["rollback", "stop_tables", "restart", "handlers"])
def test_a_batch_that_may_be_merged_in_part_stays_as_it_is(young: Young, again: str) -> None:
    match again:
        case "rollback":
            young.hand_out.rollback(young.first)
        case "stop_tables":
            young.hand_out.stop_tables(young.first, {"shop.items": ("DDL_UNSUPPORTED", "a reason")})
        case "restart":
            young.hand_out.close()
            young.hand_out = young.made()
        case "handlers":  # they are told of each hand-out
            young.hand_out.ack(young.first)
            young.hand_out.close()
            young.hand_out = young.made(handlers=young.calls())
            young.next_of_one()
    head = young.hand_out.outstanding() or young.hand_out.next(60.0)
    assert head is not None
    young.come(1)
    assert young.hand_out.append_to(head) == head


@pytest.mark.parametrize("hindrance", ["a full disk", "a table that stops"])
def test_what_cannot_be_staged_with_it_is_the_next_batch(young: Young, hindrance: str) -> None:
    if hindrance == "a full disk":
        young.trouble = StagingError("no space left")
    else:
        stop = StoppedTable(database="shop", table="items", state=TableState.DDL_UNSUPPORTED, reason="", position=START)
        young.stops = (stop,)
    young.come(1)
    assert young.hand_out.append_to(young.first) == young.first
    young.trouble, young.stops = None, ()
    assert not [path for path in young.folder.glob("[0-9]*") if path.name != young.first.path]
    young.hand_out.ack(young.first)
    assert wait_for("the next batch", lambda: young.hand_out.next(60.0)).start == young.first.end
    assert young.staged[-1] == [1]


@pytest.mark.found
@pytest.mark.parametrize("error", [MetaError("the ledger did not answer"), LeaseLostError("another host has it")])
def test_an_append_whose_ledger_write_is_not_confirmed_is_no_answer(
    young: Young, monkeypatch: pytest.MonkeyPatch, error: SluiceError
) -> None:
    """Number 3: a write that nobody answered may be in the ledger, and the run was told that its batch is as it was."""
    young.come(1)

    def fail(_: object) -> Ledger:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(young.meta, "update", fail)
        with pytest.raises(type(error)):
            young.hand_out.append_to(young.first)
    assert (young.folder / young.first.path).is_dir()
    young.hand_out.rollback(young.first)
    head = young.hand_out.outstanding()
    assert head is not None
    assert (head.path, head.end) == (young.first.path, young.first.end)


def test_a_batch_that_is_rolled_back_while_it_grows_comes_again_as_it_was(young: Young) -> None:
    young.come(1)
    stage = young.hand_out._stage

    def beside_a_tick(batch: Batch, record: OutstandingBatch, more: Callable[[Batch], Batch]) -> Staged:
        young.hand_out.rollback(young.first)
        return stage(batch, record, more)

    young.hand_out._stage = beside_a_tick
    young.hand_out.append_to(young.first)
    young.hand_out._stage = stage
    head = young.hand_out.outstanding()
    assert head is not None
    assert (head.path, head.end) == (young.first.path, young.first.end)
    assert (young.folder / head.path).is_dir()
    young.hand_out.ack(head)
    wait_for("the next batch", lambda: young.hand_out.next(60.0))
    assert young.staged[-1] == [1]


@pytest.mark.parametrize(("appendable_bytes_max", "staged"), [(1 << 20, [1, 2, 3, 4]), (20, [1, 2, 3])])
def test_a_batch_of_several_parts_grows_while_it_is_little_and_keeps_its_limit(
    young: Young, appendable_bytes_max: int, staged: list[int]
) -> None:
    young.hand_out.ack(young.first)
    young.hand_out.close()
    limits = BatchLimits(bytes_max=1 << 20, events_max=4, appendable_bytes_max=appendable_bytes_max)
    young.hand_out = young.made(limits=limits)
    young.source.time_us = 0  # a backlog: what follows is asked for, part after part
    young.come(3)
    batch = young.hand_out.next(60.0)
    assert batch is not None
    young.come(2)
    young.hand_out.append_to(batch)
    assert young.staged[-1] == staged, "the last one is beyond the events of a batch"


@pytest.mark.found
def test_a_table_that_stops_is_logged_by_its_name_with_the_way_out(
    young: Young, caplog: pytest.LogCaptureFixture
) -> None:
    """Number 29: the log said "table stopped", once for each table, without a name."""
    stop = StoppedTable(
        database="shop", table="items", state=TableState.DDL_UNSUPPORTED, reason="no plan", position=START
    )
    young.stops, young.stops_at_once = (stop,), True
    young.hand_out.ack(young.first)
    young.next_of_one()
    (said,) = [each.getMessage() for each in caplog.records if "stopped" in each.getMessage()]
    assert said.startswith("the table shop.items of shop stopped: DDL_UNSUPPORTED: no plan (")
    assert "sluice schema resume shop shop.items" in said
