"""Tests that every implementation of `ports.Stager` keeps what the hand-out of batches relies on. The same tests run for each
implementation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.cdc_engine.config import DestinationConfig
from sluice.cdc_engine.contracts import NOTHING, Batch, OutstandingBatch, StoppedTable
from sluice.cdc_engine.errors import SluiceError
from sluice.cdc_engine.instance.engine.staging_rules import make_rules
from sluice.cdc_engine.instance.tables.value_policies import policies_of
from sluice.cdc_engine.ports import Stager
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.staging.batches import StagedBatches
from sluice.cdc_engine.staging.reader import is_whole
from sluice.cdc_engine.staging.stager import make_stager
from sluice.cdc_engine.states import TableState
from tests.binlog.rows.event_bytes import KEYLESS, ORDERS, block, event
from tests.fix_ledgers import LEDGER, MemoryLedger
from tests.staging.test_staging import FILE, INSERT, batch, files, rows_block, whole

Make = Callable[[Path, MemoryLedger], Stager]
SOURCE = {"host": "127.0.0.1", "user": "reader"}


def staging(directory: Path, meta: MemoryLedger) -> Stager:
    config = DestinationConfig.model_validate({"name": "shop", "source": SOURCE, "include": r"shop\..*"})
    return make_stager("shop", directory, make_rules(config, directory, meta, policies_of(config)))


@pytest.fixture(params=[staging])
def make(request: pytest.FixtureRequest) -> Make:
    made: Make = request.param
    return made


@pytest.fixture
def meta() -> MemoryLedger:
    return MemoryLedger(LEDGER)


def record(part: Batch, delivery: int = 7) -> OutstandingBatch:
    assert part.start is not None
    assert part.end is not None
    return OutstandingBatch(
        ledger_id=LEDGER.ledger_id,
        batch_id=1,
        delivery=delivery,
        start=part.start,
        end=part.end,
        path="",
        rows=0,
        bytes=0,
    )


def orders(*numbers: int, start: int = 4, end: int = 100_000) -> Batch:
    rows = [(number, number, "x") for number in numbers]
    return batch(whole(rows_block((ORDERS, INSERT, rows), start=start)), end=end)


def no_more(_: Batch) -> Batch:
    return NOTHING


def test_what_is_staged_is_whole_and_described(make: Make, meta: MemoryLedger, tmp_path: Path) -> None:
    part = orders(1, 2, 3)
    staged = make(tmp_path, meta)(part, record(part), no_more)
    assert (staged.rows, staged.tables, staged.stopped) == (3, ("shop.orders",), ())
    assert staged.size_bytes > 0
    assert staged.first_commit_time_us == 1_000_000
    assert staged.path.is_relative_to(tmp_path)
    assert is_whole(staged.path)


def test_fault_a_process_that_stages_a_batch_late_leaves_the_files_of_the_next_process(
    make: Make, meta: MemoryLedger, tmp_path: Path
) -> None:
    """The first process paused for so long that a second process took the destination over. The second process handed out the same changes
    with the same batch number and delivery.
    """
    part, (first, second) = orders(1, 2, 3), (make(tmp_path, meta) for _ in range(2))
    there = second(part, record(part), no_more)
    late = first(part, record(part), no_more)
    assert late.path != there.path
    assert files(late.path) == files(there.path)
    StagedBatches(tmp_path).remove(late.path, LEDGER.ledger_id)
    assert is_whole(there.path)


def test_the_same_batch_gives_the_same_files(make: Make, meta: MemoryLedger, tmp_path: Path) -> None:
    part = orders(1, 2, 3)
    stager = make(tmp_path, meta)
    first = stager(part, record(part), no_more)
    kept = files(first.path)
    assert kept
    again = stager(part, record(part, 8), no_more)
    assert files(again.path) == kept
    assert again.path != first.path, "another delivery has files of its own"


def test_more_is_requested_until_there_is_none(make: Make, meta: MemoryLedger, tmp_path: Path) -> None:
    first, second = orders(1, end=50_000), orders(2, start=60_000)
    second = dataclasses.replace(second, start=first.end)
    rest = [second, NOTHING]
    requested: list[Position | None] = []

    def more(part: Batch) -> Batch:
        requested.append(part.end)
        return rest.pop(0)

    staged = make(tmp_path, meta)(first, record(first), more)
    assert requested == [first.end, second.end]
    assert staged.rows == 2


def test_a_table_that_stopped_before_is_left_out(make: Make, meta: MemoryLedger, tmp_path: Path) -> None:
    position = Position(epoch=1, file=FILE, offset=4)
    stop = StoppedTable(database="shop", table="orders", state=TableState.DDL_HELD, reason="held", position=position)
    meta.update(lambda ledger: ledger.stop_table(stop))
    part = batch(whole(rows_block((ORDERS, INSERT, [(1, 1, "x")]), (KEYLESS, INSERT, [(1, 1, "x")]))))
    assert make(tmp_path, meta)(part, record(part), no_more).tables == ("shop.log",)


def test_a_batch_without_changes_stages_no_table(make: Make, meta: MemoryLedger, tmp_path: Path) -> None:
    part = batch()
    staged = make(tmp_path, meta)(part, record(part), no_more)
    assert (staged.tables, staged.rows) == ((), 0)


def test_what_fails_leaves_nothing_and_can_be_done_again(make: Make, meta: MemoryLedger, tmp_path: Path) -> None:
    stager, part = make(tmp_path, meta), orders(1)
    (good,) = part.slices
    truncated = event(INSERT, [(1, 1, "x")])[:-1]
    damaged = dataclasses.replace(good, block=block([(ORDERS, INSERT, truncated)]))
    with pytest.raises(SluiceError):
        stager(batch(damaged), record(part), no_more)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert stager(part, record(part), no_more).rows == 1
