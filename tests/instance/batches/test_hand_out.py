"""Tests a batch whose staging takes longer than its caller waits: it is handed out once, and its run takes it with later changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sluice.cdc_engine.contracts import Batch, OutstandingBatch, Staged, StoppedTable
from sluice.cdc_engine.errors import (
    BatchNotFoundError,
    HandlerError,
    LeaseLostError,
    MetaError,
    NotStartedError,
    SluiceError,
    StagingError,
)
from sluice.cdc_engine.instance.batches.hand_out import BatchLimits
from sluice.cdc_engine.meta.ledger import Ledger
from sluice.cdc_engine.staging.batches import StagedBatches
from sluice.cdc_engine.states import TableState
from tests.instance.batches.fix_hand_outs import START, Late, Open
from tests.waiting import wait_for


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


def test_nothing_is_done_while_a_batch_is_in_flight(late: Late) -> None:
    batch = late.staged_late()
    assert not late.hand_out.while_idle(lambda: pytest.fail("a batch is out"))
    late.hand_out.ack(batch)
    done: list[str] = []
    assert late.hand_out.while_idle(lambda: done.append("now"))
    assert done == ["now"]


@pytest.fixture
def quick(late: Late) -> Late:
    """Returns a hand-out whose staging does not wait."""
    late.may_end.set()
    late.store.put(late.source.block([1]))
    return late


def test_handlers_are_called_around_a_batch_before_the_next(quick: Late) -> None:
    batch = quick.hand_out.next(60.0)
    assert batch is not None
    assert quick.audit.calls == [("before", 1, "")]
    assert quick.audit.seen[0].folder.is_dir()
    quick.hand_out.rollback(batch)  # The files of the batch could not be merged, so it is staged again.
    again = quick.hand_out.next(60.0)
    assert again is not None
    quick.hand_out.ack(again)
    assert quick.hand_out.next(60.0) is None
    assert quick.audit.calls == [
        ("before", 1, ""), ("retry", 1, "the run did not merge the batch"), ("before", 2, ""), ("after", 2, "")
    ]  # fmt: skip


def test_a_batch_waits_for_a_handler_that_fails_before_it(quick: Late) -> None:
    quick.audit.failing = "before"
    for delivery in (1, 2):
        with pytest.raises(HandlerError, match=f"the handler audit failed in `before` for delivery {delivery}"):
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
    with pytest.raises(HandlerError, match="the handler audit failed in `after` for delivery 1"):
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
    with pytest.raises(HandlerError, match="the handler audit failed in `retry` for delivery 1"):
        quick.hand_out.next(60.0)
    quick.audit.failing = ""
    again = quick.hand_out.next(60.0)
    assert again is not None
    assert again.delivery == 2
    assert quick.audit.calls[1:] == [("retry", 1, "the batch continues without the tables shop.orders")] * 2


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    monkeypatch.setattr(StagedBatches, "is_whole", lambda _, batch: (tmp_path / batch.path).is_dir())
    made = Open(tmp_path)
    yield made
    made.hand_out.close()


def test_a_run_takes_its_batch_with_what_came_since_it_was_staged(shop: Open) -> None:
    shop.come(2)
    taken = shop.hand_out.take(shop.first)
    assert shop.head == taken
    assert (taken.batch_id, taken.delivery, taken.start) == (2, 2, shop.first.start)
    assert (taken.end.offset > shop.first.end.offset, taken.appendable) == (True, False)
    assert shop.staged == [[0], [1], [1, 2, 3]]
    assert shop.folders() == {taken.path}, "nobody reads the files of a batch that was not taken"
    shop.hand_out.ack(taken)
    assert not shop.folders()
    shop.next_of_one()
    assert shop.staged[-1] == [4], "nothing twice, nothing left out"
    assert shop.meta.ledger.given_up is None


def test_every_later_request_has_the_same_answer(shop: Open) -> None:
    shop.come(1)
    taken = shop.hand_out.take(shop.first)
    shop.come(1)
    assert shop.hand_out.take(shop.first) == shop.hand_out.take(taken) == taken
    shop.restart()
    assert shop.hand_out.take(shop.first) == taken, "from the ledger"
    assert shop.staged[-1] == [1, 2]


def test_a_request_that_is_repeated_while_it_is_carried_out_has_the_same_answer(shop: Open) -> None:
    shop.come(1)
    shop.may_end.clear()
    with ThreadPoolExecutor(2) as requests:
        both = [requests.submit(shop.hand_out.take, shop.first) for _ in range(2)]
        shop.may_end.set()
        one, other = (each.result(60) for each in both)
    assert one == other == shop.head
    assert shop.staged[1:] == [[1], [1, 2]], "it was staged once"


@pytest.mark.parametrize("why", ["nothing came", "not wanted", "restart"])
def test_a_batch_is_taken_as_it_was_staged(shop: Open, why: str) -> None:
    if why != "nothing came":
        shop.come(1)
    if why == "restart":
        shop.restart()
    taken = shop.hand_out.take(shop.first, append=why != "not wanted")
    assert taken == dataclasses.replace(shop.first, appendable=False)
    assert shop.head == taken
    shop.come(1)
    assert shop.hand_out.take(shop.first) == taken
    assert shop.staged == [[0], [1]]


@pytest.mark.parametrize("again", ["rollback", "stop_tables"])
def test_a_batch_that_may_be_merged_in_part_keeps_its_end(shop: Open, again: str) -> None:
    shop.come(1)
    taken = shop.hand_out.take(shop.first)
    if again == "rollback":
        shop.hand_out.rollback(taken)
    else:
        shop.hand_out.stop_tables(taken, {"shop.items": ("DDL_UNSUPPORTED", "a reason")})
    head = shop.head
    assert (head.batch_id, head.end, head.path) == (taken.batch_id, taken.end, taken.path)
    assert head.delivery > taken.delivery
    shop.come(1)
    assert shop.hand_out.take(head) == head
    for act in (shop.hand_out.take, shop.hand_out.ack, shop.hand_out.rollback):
        with pytest.raises(BatchNotFoundError):
            act(taken)


def test_a_batch_has_a_fixed_end_after_a_run_that_did_not_take_it(shop: Open) -> None:
    """A run that cannot reach the engine cannot take an appendable batch, and fails. So the following batches have fixed ends until a run
    has taken a batch. Such runs then fail only once.
    """
    shop.hand_out.rollback(shop.first)
    head = shop.head
    assert not head.appendable
    shop.hand_out.ack(head)
    batch = shop.next_of_one()
    assert not batch.appendable
    shop.hand_out.take(batch)
    shop.hand_out.ack(batch)
    assert shop.next_of_one().appendable, "a run has reached it"


def test_a_batch_with_handlers_has_a_fixed_end(shop: Open) -> None:
    """Handlers get a batch when it is handed out. So no changes may be appended to it afterwards."""
    shop.hand_out.ack(shop.first)
    shop.hand_out.close()
    shop.hand_out = shop.made(handlers=shop.calls())
    batch = shop.next_of_one()
    shop.hand_out.take(batch)
    shop.hand_out.ack(batch)
    assert not shop.next_of_one().appendable


def test_a_batch_that_the_caller_does_not_want_appendable_has_a_fixed_end(shop: Open) -> None:
    shop.hand_out.ack(shop.first)
    shop.come(1)
    batch = wait_for("a batch is staged", lambda: shop.hand_out.next(60.0))
    assert not batch.appendable


@pytest.mark.parametrize("hindrance", ["a full disk", "a table that stops"])
def test_what_cannot_be_staged_with_it_is_the_next_batch(shop: Open, hindrance: str) -> None:
    if hindrance == "a full disk":
        shop.trouble = StagingError("no space left")
    else:
        stop = StoppedTable(database="shop", table="items", state=TableState.DDL_UNSUPPORTED, reason="", position=START)
        shop.stops = (stop,)
    shop.come(1)
    taken = shop.hand_out.take(shop.first)
    assert taken == dataclasses.replace(shop.first, appendable=False)
    shop.trouble, shop.stops = None, ()
    assert shop.folders() == {taken.path}
    shop.hand_out.ack(taken)
    assert shop.next().start == taken.end
    assert shop.staged[-1] == [2]


@pytest.mark.found
@pytest.mark.parametrize("error", [MetaError("the ledger did not answer"), LeaseLostError("another host has it")])
def test_a_request_whose_ledger_write_is_not_confirmed_has_no_answer_and_may_be_repeated(
    shop: Open, monkeypatch: pytest.MonkeyPatch, error: SluiceError
) -> None:
    """Defect 3: a write without an answer may be in the ledger, but the run got the answer that its batch is unchanged."""
    shop.come(1)

    def fail(_: object) -> Ledger:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(shop.meta, "update", fail)
        for _ in range(2):
            with pytest.raises(type(error)):
                shop.hand_out.take(shop.first)
    assert shop.head == shop.first
    assert shop.hand_out.take(shop.first) == dataclasses.replace(shop.first, appendable=False)
    shop.hand_out.ack(shop.head)
    shop.next()
    assert shop.staged[-1] == [2]


def test_a_batch_that_the_ledger_cannot_record_is_staged_again(shop: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed write, the stored ledger may have the batch nevertheless. So the files of the batch stay until a later write has
    removed the batch from the ledger.
    """
    shop.hand_out.ack(shop.first)
    shop.come(1)

    def fail(_: object) -> Ledger:
        raise MetaError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(shop.meta, "update", fail)
        for _ in range(2):
            with pytest.raises(MetaError, match="the disk is full"):
                shop.hand_out.next(60.0)
            assert len(shop.folders()) == 1
            assert shop.hand_out.outstanding() is None
            assert shop.hand_out.trouble is not None
            assert shop.hand_out.first_commit_time_us == 0
    batch = shop.next()
    assert (batch.delivery, batch.start) == (4, shop.first.end), "no other batch gets the numbers of the first attempt"
    assert shop.staged[-2:] == [[2], [2]]
    assert shop.folders() == {batch.path}
    assert shop.hand_out.trouble is None


@pytest.mark.parametrize("error", [MetaError("no answer"), LeaseLostError("another host has it")])
def test_a_batch_in_the_stored_ledger_has_its_files_after_a_lost_answer(
    shop: Open, monkeypatch: pytest.MonkeyPatch, error: SluiceError
) -> None:
    shop.hand_out.ack(shop.first)
    shop.come(1)
    update = shop.meta.update

    def stored_without_an_answer(change: Callable[[Ledger], Ledger]) -> Ledger:
        update(change)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(shop.meta, "update", stored_without_an_answer)
        with pytest.raises(type(error)):
            shop.hand_out.next(60.0)
    (stored,) = shop.meta.ledger.outstanding
    assert shop.folders() == {stored.path}


def test_a_position_covers_the_batch_that_is_being_staged(shop: Open) -> None:
    """The position of the stream decides which standby source may take over. A source that lacks the changes of the batch must not take
    over.
    """
    stream = shop.stream
    assert stream.position == shop.first.end
    shop.hand_out.ack(shop.first)
    shop.come(1)
    shop.may_end.clear()
    assert shop.hand_out.next(0.0) is None
    wait_for("the changes are taken", lambda: stream.position != shop.first.end)
    assert shop.meta.ledger.resume_position == shop.first.end
    shop.trouble = StagingError("no space left")
    shop.may_end.set()
    with pytest.raises(StagingError):
        shop.hand_out.next(60.0)
    assert stream.position == shop.first.end
    shop.trouble = None
    batch = shop.next()
    assert stream.position == batch.end


def test_files_that_the_ledger_may_name_stay(shop: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write is stored, its answer is lost, and the process ends before the request is repeated."""
    shop.come(1)
    update = shop.meta.update

    def stored_without_an_answer(change: Callable[[Ledger], Ledger]) -> Ledger:
        update(change)
        raise MetaError("the ledger did not answer")

    monkeypatch.setattr(shop.meta, "update", stored_without_an_answer)
    with pytest.raises(MetaError):
        shop.hand_out.take(shop.first)
    assert len({shop.head.path, shop.first.path} & shop.folders()) == 2
    assert not shop.meta.ledger.restarted(lambda batch: batch.path in shop.folders()).unfinished


@pytest.mark.parametrize("order", ["rolled back, then staged", "staged, then rolled back"])
def test_a_rollback_during_a_late_request_leaves_one_batch_whatever_comes_first(shop: Open, order: str) -> None:
    """The run got no answer and failed. A tick rolls the run's batch back, and the engine executes the request before or after that."""
    shop.come(1)
    stage, late = shop.hand_out._stage, order == "staged, then rolled back"

    def during_a_tick(batch: Batch, record: OutstandingBatch, more: Callable[[Batch], Batch]) -> Staged:
        shop.hand_out.rollback(shop.first)
        return stage(batch, record, more)

    if late:
        taken = shop.hand_out.take(shop.first)
        shop.hand_out.rollback(shop.first)
    else:
        shop.hand_out._stage = during_a_tick
        with pytest.raises(BatchNotFoundError):
            shop.hand_out.take(shop.first)
        shop.hand_out._stage, taken = stage, shop.first
    head = shop.head
    assert (head.path, head.end, head.appendable, head.delivery) == (taken.path, taken.end, False, 3)
    assert shop.folders() == {head.path}
    shop.hand_out.ack(head)
    if late:
        shop.come(1)
    shop.next()
    assert shop.staged[-1] == ([3] if late else [2])


def test_a_request_that_replaces_the_files_during_a_rollback_does_not_look_like_damage(
    shop: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the request replaces the batch, the rollback has already begun to check the batch's old files."""
    shop.come(1)
    shop.may_end.clear()
    is_whole = StagedBatches.is_whole
    with ThreadPoolExecutor(1) as requests:
        request = requests.submit(shop.hand_out.take, shop.first)
        wait_for("the request is carried out", lambda: shop.hand_out._taking)

        def during_a_request(batches: StagedBatches, batch: OutstandingBatch) -> bool:
            shop.may_end.set()
            request.result(60)
            return is_whole(batches, batch)

        monkeypatch.setattr(StagedBatches, "is_whole", during_a_request)
        shop.hand_out.rollback(shop.first)
    assert (shop.head.delivery, shop.head.batch_id) == (3, 2)
    assert shop.staged[-1] == [1, 2]
    assert shop.folders() == {shop.head.path}


def test_an_ack_after_a_request_moves_to_the_end_that_was_taken(shop: Open) -> None:
    """The caller acks with the batch as it was before its run took it."""
    shop.come(1)
    taken = shop.hand_out.take(shop.first)
    shop.hand_out.ack(shop.first)
    assert shop.meta.ledger.cursor == taken.end
    assert not shop.folders()


def test_a_closed_hand_out_refuses_a_request(shop: Open) -> None:
    shop.hand_out.close()
    with pytest.raises(NotStartedError):
        shop.hand_out.take(shop.first)
    assert shop.head == shop.first


@pytest.mark.parametrize(("appendable_bytes_max", "staged"), [(1 << 20, [2, 3, 4, 5]), (20, [2, 3, 4])])
def test_a_batch_of_several_parts_is_appended_to_while_it_is_little_and_keeps_its_limit(
    shop: Open, appendable_bytes_max: int, staged: list[int]
) -> None:
    shop.hand_out.ack(shop.hand_out.take(shop.first))
    shop.hand_out.close()
    limits = BatchLimits(bytes_max=1 << 20, events_max=4, appendable_bytes_max=appendable_bytes_max)
    shop.hand_out = shop.made(limits=limits)
    with pytest.raises(BatchNotFoundError):
        shop.hand_out.take(shop.first)
    shop.source.time_us = 0  # There is a backlog: the following changes are requested part by part.
    shop.come(3)
    batch = shop.next()
    assert batch.appendable is (appendable_bytes_max > 20)
    shop.come(2)
    shop.hand_out.take(batch)
    assert shop.staged[-1] == staged, "the last one is beyond the events of a batch"


@pytest.mark.found
def test_a_table_that_stops_is_logged_by_its_name_with_the_way_out(
    shop: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """Defect 29: the log had "table stopped" once for each table, without the table's name."""
    stop = StoppedTable(
        database="shop", table="items", state=TableState.DDL_UNSUPPORTED, reason="no plan", position=START
    )
    shop.stops, shop.stops_at_once = (stop,), True
    shop.hand_out.ack(shop.first)
    shop.next_of_one()
    (said,) = [each.getMessage() for each in caplog.records if "stopped" in each.getMessage()]
    assert said.startswith("the table shop.items of shop stopped in the state DDL_UNSUPPORTED: no plan (")
    assert "sluice schema resume shop shop.items" in said
