"""A batch that is staged later than its caller waits for is handed out once."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cdc_engine.contracts import Batch, OutstandingBatch, Staged
from cdc_engine.errors import HandlerError
from cdc_engine.handlers.calls import Calls
from cdc_engine.instance.hand_out import GET_SECONDS, MORE_SECONDS_MIN, BatchLimits, HandOut, more_seconds
from cdc_engine.meta.memory_meta import MemoryMeta
from cdc_engine.position import Position
from cdc_engine.server.service import CanalService
from cdc_engine.store.memory_store import MemoryEventStore
from tests.fix_blocks import Source
from tests.fix_ledgers import CLIENT
from tests.handlers.fix_handlers import Remembering
from tests.waiting import wait_for

START = Position(epoch=1, file="mysql-bin.000001", offset=4, server_uuid="u")


class Late:
    """A hand-out whose staging waits until it may end."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.may_end = folder, threading.Event()
        self.meta = MemoryMeta()
        self.meta.update(lambda ledger: ledger.set_cursor(START).subscribe(CLIENT))
        self.store, self.source = MemoryEventStore(folder / "spill", start=START), Source()
        service = CanalService()
        service.start("shop", self.store, self.meta)
        limits = BatchLimits(bytes_max=1 << 20, events_max=1000)
        self.audit = Remembering()
        self.made = functools.partial(
            HandOut, CLIENT, service, self.meta, stage=self.stage, limits=limits, directory=folder
        )
        self.hand_out = self.made(handlers=self.calls())

    def calls(self) -> Calls:
        return Calls("shop", self.folder, [("audit", self.audit)])

    def stage(self, batch: Batch, record: OutstandingBatch, more: Callable[[Batch], Batch]) -> Staged:  # noqa: ARG002
        self.may_end.wait()
        assert batch.end == record.end
        path = self.folder / str(record.delivery)
        path.mkdir()
        return Staged(path=path, rows=1, size_bytes=1, tables=("shop.orders",), first_commit_time_us=1)

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
    assert quick.audit.calls[1:] == [("retry", 1, "it goes on without shop.orders")] * 2


def test_the_longer_a_batch_was_staged_the_longer_it_waits_for_more() -> None:
    assert more_seconds(0.0) == MORE_SECONDS_MIN
    assert MORE_SECONDS_MIN < more_seconds(1.0) < GET_SECONDS
    assert more_seconds(60.0) == GET_SECONDS
