"""Tests get, ack, rollback, lost connections and restarts of store and ledger in any order, against a model of ten lines.

The model knows only the sequence of row events that the source wrote, and how many of them are acked. Whatever happens, what is handed out
after the acked prefix is the source's sequence without a gap, a repetition or another order. A batch never splits a transaction.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sluice.cdc_engine.binlog.block import end_position
from sluice.cdc_engine.contracts import Batch, OutstandingBatch
from sluice.cdc_engine.instance.batches.stream_batches import StreamBatches
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.store.memory_store import MemoryEventStore
from sluice.cdc_engine.store.opening import GoingOn, StorePlan, open_store
from tests.fix_blocks import SERVER, Source, numbers_in
from tests.fix_ledgers import CLIENT, FileLedger, handed_out

START = Position(epoch=1, file="mysql-bin.000001", offset=4, server_uuid=SERVER)
RING_EVENTS = 12
FILES_BYTES = 1 << 15  # This is small, so that segments end, are removed, and fill the store.
LIMITS = st.integers(1, 20)
OPEN_EVENTS = st.one_of(st.integers(0, 4), st.integers(RING_EVENTS, 2 * RING_EVENTS))
MEMORY_DIR = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - an fsync there costs nothing


class Model:
    """Contains the expected state of the hand-out. `handed_out` has the number of row events of each batch in flight. `taken` is the number
    of row events of the batch that is being staged. `ends` has the number of row events before the end of each transaction.
    """

    def __init__(self) -> None:
        self.acked, self.handed_out, self.taken, self.ends = 0, list[int](), 0, {0}

    def get(self, numbers: list[int]) -> None:
        """Adds the row events `numbers` to the batch that is being staged. Requires that they continue the sequence and end a
        transaction.
        """
        first = self.acked + sum(self.handed_out) + self.taken
        assert numbers == list(range(first, first + len(numbers)))
        assert first + len(numbers) in self.ends
        self.taken += len(numbers)

    def hand_out(self) -> None:
        self.handed_out.append(self.taken)
        self.taken = 0

    def append_to(self, numbers: list[int]) -> None:
        self.get(numbers)
        self.handed_out, self.taken = [self.handed_out[0] + self.taken], 0

    def ack(self) -> None:
        self.acked += self.handed_out.pop(0)

    def rollback(self) -> None:
        self.handed_out.clear()
        self.taken = 0


class HandOut(RuleBasedStateMachine):
    """Tests one destination. `restart` builds store, ledger and batches again from the files, as after SIGKILL."""

    @initialize()
    def begin(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="hand-out-", dir=MEMORY_DIR)) / "shop"
        self.model = Model()
        # Maps the end offset of a transaction to the numbers of events and transactions up to this offset.
        self.written: dict[int, tuple[int, int]] = {START.offset: (0, 0)}
        self.last_id, self.last_delivery, self.end = 0, 0, START.order_key
        # `parts` has the parts of the batch that was requested last, and is empty if the store has freed a part. `staging` is true while
        # this batch is being staged.
        self.parts: list[Batch] = []
        self.staging = False
        FileLedger(self.directory).update(lambda ledger: ledger.set_cursor(START).subscribe(CLIENT))
        self._start()

    def _start(self) -> None:
        self.parts, self.staging, self.model.taken = [], False, 0
        self.meta = FileLedger(self.directory)
        self.meta.update(lambda ledger: ledger.restarted(lambda _: True))
        position = self.meta.ledger.resume_position
        assert position is not None
        self.store = self._made(position)
        self.stream = StreamBatches("shop", self.store, self.meta, self._rewind)
        self._read_from(self.store.put_position)
        self.end = position.order_key

    def _made(self, position: Position) -> MemoryEventStore:
        return MemoryEventStore(self.directory / "spill", events_max=RING_EVENTS, start=position)

    def _rewind(self, position: Position | None) -> None:
        assert position is not None
        self.store.start_at(position)
        self._read_from(position)

    def _read_from(self, position: Position | None) -> None:
        """Connects the parser again. The source repeats everything after the position."""
        assert position is not None
        self.end = position.order_key
        events, transactions = self.written[position.offset]
        self.source = Source(offset=position.offset, number=events, transaction=transactions)

    def _room(self) -> bool:
        metrics = self.store.metrics()
        return metrics.fill_events < RING_EVENTS or metrics.ack_sequence == metrics.put_sequence - self._open_events()

    def _open_events(self) -> int:
        return self.source.number - max(end for end in self.model.ends if end <= self.source.number)

    @rule(data=st.data(), count=st.integers(1, 4))
    def put(self, data: st.DataObject, count: int) -> None:
        """Puts the source's next blocks into the store, as far as there is space."""
        for _ in range(count):
            if self._room():
                self._put_one(data)

    def _put_one(self, data: st.DataObject) -> None:
        """Puts one block into the store. A transaction that the source repeats ends at the same event as before."""
        source, known = self.source, sorted(end for end in self.model.ends if end > self.source.number)
        if known:
            count = data.draw(st.integers(1, len(known)))
            sizes = [end - before for before, end in zip([source.number, *known], known[:count], strict=False)]
            open_events = data.draw(st.integers(0, known[count] - known[count - 1] - 1)) if count < len(known) else 0
        else:
            sizes = data.draw(st.lists(st.integers(1, 5), max_size=4))
            open_events = max(data.draw(OPEN_EVENTS), 0 if sizes else 1)
        events, transactions = source.number, source.transaction
        block = source.block(sizes, open_events)
        for index, size in enumerate(block.transaction_events.tolist()):
            self.model.ends.add(events + size)
            self.written.setdefault(end_position(block, index).offset, (events + size, transactions + index + 1))
        self.store.put(block)

    @rule()
    def lose_connection(self) -> None:
        self.store.drop_open_transaction()
        position = self.store.put_position
        end = self.end
        self._read_from(position)
        self.end = end

    @precondition(lambda self: not self.staging)
    @rule(events=LIMITS, stage=st.booleans())
    def get(self, events: int, *, stage: bool) -> None:
        """Gets a batch, and hands it out at once if other batches are in flight, or if `stage` is true."""
        batch = self.stream.get(1 << 40, events)
        if batch.empty:
            return
        assert batch.start is not None
        assert batch.end is not None
        assert self.end <= batch.start.order_key < batch.end.order_key
        self.begun = self.meta.ledger.next_batch(batch.end, batch.start)
        assert self.begun.batch_id > self.last_id
        assert self.begun.delivery > self.last_delivery
        self.taken, self.parts, self.staging, self.end = batch, [batch], True, batch.end.order_key
        self.model.get(numbers_in(batch))
        if stage or self.model.handed_out:
            self.hand_out()

    def _staged(self) -> OutstandingBatch:
        """Returns the record of the batch that is being staged, as if all files were written."""
        assert self.taken.end is not None
        return dataclasses.replace(self.begun, end=self.taken.end, path="x", rows=1, bytes=1)

    @precondition(lambda self: self.staging)
    @rule()
    def hand_out(self, *, appendable: bool = False) -> None:
        staged = dataclasses.replace(self._staged(), appendable=appendable)
        record = self.meta.update(lambda ledger: ledger.hand_out(staged)).outstanding[-1]
        self.last_id, self.last_delivery, self.staging = record.batch_id, record.delivery, False
        self.model.hand_out()

    @precondition(lambda self: self.staging)
    @rule()
    def skip(self) -> None:
        """The staged batch has nothing for the lake."""
        staged = self._staged()
        self.stream.skip(staged)
        self.last_id, self.last_delivery, self.staging = staged.batch_id, staged.delivery, False
        self.model.hand_out()
        self.model.ack()

    @precondition(lambda self: self.staging)
    @rule()
    def put_back(self) -> None:
        """The batch cannot be staged."""
        cursor = self.meta.ledger.cursor
        assert cursor is not None
        self.end, self.staging = cursor.order_key, False
        self.stream.put_back()
        self.model.rollback()

    @precondition(lambda self: self.staging)
    @rule(events=LIMITS, kept=st.booleans())
    def get_more(self, events: int, *, kept: bool) -> None:
        """Appends to the batch that is being staged. If `kept` is true, the store keeps the earlier parts of this batch. Otherwise it frees
        them.
        """
        part = self.stream.get_more(self.taken, 1 << 40, events, kept=kept)
        self.parts = [*self.parts, part] if kept and self.parts else []
        if part.empty:
            return
        assert part.start is not None
        assert part.end is not None
        assert part.start == self.taken.end
        assert self.end <= part.start.order_key < part.end.order_key
        self.taken, self.end = part, part.end.order_key
        self.model.get(numbers_in(part))

    @rule(events=st.integers(1, 5), done=st.booleans())
    def take(self, events: int, *, done: bool) -> None:
        """Hands out one batch whose parts the store keeps, and takes it. If `done` is true, the changes that follow it are appended.
        Otherwise the batch stays as it was staged.
        """
        while self.model.handed_out:
            self.ack()
        if not self.staging:
            self.get(events, stage=False)
        if not self.staging:
            return
        self.get_more(events, kept=True)
        self.hand_out(appendable=True)
        head = self.meta.ledger.outstanding[0]
        if not self.parts:
            return

        def keep(part: Batch) -> bool:
            if not done or part.end is None:
                return False
            count = self.model.handed_out[0]
            content = [number for each in self.parts for number in numbers_in(each)]
            assert content == list(range(self.model.acked, self.model.acked + count)), "the store has kept all of it"
            longer = dataclasses.replace(head, end=part.end, path="y")
            record = self.meta.update(lambda ledger: ledger.taken(head, longer, part.start)).outstanding[0]
            assert (record.batch_id, record.delivery, record.end) == (head.batch_id, head.delivery, part.end)
            self.end = part.end.order_key
            self.taken, self.parts = part, [*self.parts, part]
            self.model.append_to(numbers_in(part))
            return True

        self.stream.append_to(self.taken, 1 << 40, events, keep)
        if self.meta.ledger.outstanding[0].appendable:
            self.meta.update(lambda ledger: ledger.taken(head))

    @precondition(lambda self: self.model.handed_out)
    @rule()
    def ack(self) -> None:
        self.stream.ack(self.meta.ledger.outstanding[0].batch_id)
        self.model.ack()

    @rule()
    def drain(self) -> None:
        """Acks all batches, and then hands out the complete transactions that the store has."""
        while self.model.handed_out:
            self.ack()
        if self.staging:
            self.hand_out()
            self.ack()
        self.get(1 << 40, stage=True)

    @precondition(lambda self: not self.staging)
    @rule(one=st.booleans())
    def rollback(self, *, one: bool) -> None:
        head = self.meta.ledger.head
        cursor = self.meta.ledger.cursor
        assert cursor is not None
        self.end = cursor.order_key
        self.stream.rollback(head.batch_id if one and head else None)
        self.model.rollback()

    @precondition(lambda self: self.model.handed_out or self.staging)
    @rule(roll_back=st.booleans())
    def restart(self, *, roll_back: bool) -> None:
        """Starts a new engine. If `roll_back` is true, the engine is first informed that the run of its staged batch has failed."""
        self._start()
        if roll_back:
            self.rollback(one=False)

    @invariant()
    def ledger_and_model_agree(self) -> None:
        if hasattr(self, "meta"):
            cursor = self.meta.ledger.cursor
            assert cursor is not None
            assert self.written[cursor.offset][0] == self.model.acked
            assert len(self.meta.ledger.outstanding) == len(self.model.handed_out)

    def teardown(self) -> None:
        """Requires that, at the end, every complete transaction arrives."""
        if hasattr(self, "store"):
            if self.staging:
                self.put_back()
            self.rollback(one=False)
            while not (batch := self.stream.get(1 << 40, 5)).empty:
                self.model.get(numbers_in(batch))
                assert batch.end is not None
                self.meta.update(functools.partial(handed_out, end=batch.end))
                self.model.hand_out()
            shutil.rmtree(self.directory.parent)


class StoredHandOut(HandOut):
    """Tests the same as `HandOut` with blocks in files. `kind` selects the store. After a loss of power, the end of the files may be
    missing.
    """

    kind = ""

    def _made(self, position: Position) -> MemoryEventStore:
        def lost() -> str:
            return ""

        plan = StorePlan(kind=self.kind, directory=self.directory, events_max=RING_EVENTS, files_bytes_max=FILES_BYTES)
        going_on = GoingOn(ledger_id=self.meta.ledger.ledger_id, filters="", epoch=1, begin=position, lost=lost)
        return open_store(plan, going_on, lambda: self.meta.ledger.cursor)

    def _room(self) -> bool:
        with self.store._changed:
            return self.store._room()

    @precondition(lambda self: self.model.handed_out or self.staging)
    @rule(lost_bytes=st.sampled_from((0, 1, 30, 400, 3000)))
    def power_loss(self, lost_bytes: int) -> None:
        newest = max(self.directory.glob("*/*.events"))
        os.truncate(newest, max(0, newest.stat().st_size - lost_bytes))
        self._start()


class FileHandOut(StoredHandOut):
    kind = "file"


class MixedHandOut(StoredHandOut):
    kind = "mixed"


TestHandOut = HandOut.TestCase
TestHandOut.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestFileStoreHandOut = FileHandOut.TestCase
TestFileStoreHandOut.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestMixedStoreHandOut = MixedHandOut.TestCase
TestMixedStoreHandOut.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


class Drawn:
    """Replaces the draws of hypothesis. `sizes` are the sizes of a block's complete transactions. `open_events` is the number of events of
    its open transaction.
    """

    def __init__(self, sizes: list[int], open_events: int) -> None:
        self._left: list[Any] = [sizes, open_events]

    def draw(self, _: object) -> Any:
        return self._left.pop(0)


def test_an_open_transaction_that_is_dropped_while_its_end_waits_in_files_does_not_come_twice() -> None:
    """The transaction's beginning is in the ring and in the log, and the next block fits into the ring."""
    machine = MixedHandOut()
    machine.begin()
    try:
        for sizes, open_events in (([], 1), ([1], RING_EVENTS), ([], 1)):
            machine._put_one(cast("st.DataObject", Drawn(sizes, open_events)))
        machine.drain()
        machine.ack()
        machine.lose_connection()
        machine.drain()
        machine._put_one(cast("st.DataObject", Drawn([1], 0)))
        machine.drain()
        assert machine.model.acked + machine.model.handed_out[0] == 3
    finally:
        machine.teardown()
