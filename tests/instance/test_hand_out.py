"""A batch that is staged later than its caller waits for is handed out once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cdc_engine.contracts import Batch, OutstandingBatch, Staged
from cdc_engine.instance.hand_out import BatchLimits, HandOut
from cdc_engine.meta.memory_meta import MemoryMeta
from cdc_engine.position import Position
from cdc_engine.server.service import CanalService
from cdc_engine.store.memory_store import MemoryEventStore
from tests.fix_blocks import Source
from tests.fix_ledgers import CLIENT
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
        self.hand_out = HandOut(CLIENT, service, self.meta, stage=self.stage, limits=limits, directory=folder)

    def stage(self, batch: Batch, record: OutstandingBatch, more: Callable[[Batch], Batch]) -> Staged:  # noqa: ARG002
        self.may_end.wait()
        assert batch.end == record.end
        path = self.folder / str(record.delivery)
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
