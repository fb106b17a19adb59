"""Tests when the rows of a table are read again because of foreign keys: how often, after which other tables, and what is shown. Also tests
when read rows are published while an epoch begins.
"""

from __future__ import annotations

import dataclasses

import pytest

from sluice.cdc_engine.position import Position
from sluice.cdc_engine.snapshot.record import RESTARTS_MAX, RestartCause, SnapshotRecord, SourceEnd, wanted
from sluice.cdc_engine.snapshot.steps import EPOCH_BEGINS, SnapshotSituation, SnapshotStep, next_step
from sluice.cdc_engine.states import SnapshotState
from sluice.console.acts.snapshot import ShownSnapshot

BEGIN = Position(epoch=1, file="binlog.000001", offset=400)
KEY = BEGIN.order_key
THERE = SnapshotSituation(begin=BEGIN, cursor=BEGIN, version="v1", epoch=1)


def read(name: str = "shop.child", chunks: int = 7) -> SnapshotRecord:
    begun = wanted(name, None, 0.0).began(BEGIN, version="v1", key=("id",), columns=(), rows_expected=0, now=1.0)
    return begun.with_chunks(chunks, 70, 700)


def again(record: SnapshotRecord, **changed: object) -> SnapshotRecord:
    begun = record.began(BEGIN, version="v1", key=("id",), columns=(), rows_expected=0, now=1.0)
    return dataclasses.replace(begun.with_chunks(3, 30, 300), **changed)  # type: ignore[arg-type]


def test_a_restart_for_foreign_keys_is_counted_and_shown_with_what_is_buffered() -> None:
    lost = again(read().cascades_unseen("the first cause", buffered_after=KEY)).cascades_unseen(
        "the second cause", buffered_after=KEY + 600
    )
    assert (lost.state, lost.buffered_after, lost.restarts) == (SnapshotState.WANTED, KEY + 600, 2)
    shown = ShownSnapshot(destination="shop", record=again(lost), waits="", cascade_changes=4)
    assert shown.to_json(2.0)["cascade_changes"] == 4
    assert (
        shown.says
        == "restarted 2 times; 4 changes of parent tables, whose foreign keys change rows of this table, are buffered"
    )
    assert SnapshotRecord.from_json(lost.to_json()) == lost


def test_a_table_of_which_nothing_was_read_waits_through_any_number_of_changes() -> None:
    record = wanted("shop.child", None, 0.0)
    for key in range(3 * RESTARTS_MAX):
        record = record.cascades_unseen("a cause", buffered_after=key)
    assert (record.state, record.restarts) == (SnapshotState.WANTED, 0)
    assert record.buffered_after == 3 * RESTARTS_MAX - 1


def test_a_snapshot_that_foreign_keys_restart_too_often_fails_by_name_until_it_is_resumed() -> None:
    record = read()
    for _ in range(RESTARTS_MAX):
        record = again(record.cascades_unseen("a cause", buffered_after=KEY))
    failed = record.cascades_unseen("a cause", buffered_after=KEY)
    assert failed.state == SnapshotState.FAILED
    assert failed.reason.startswith("CASCADE_UNSEEN: the rows were read again 8 times because of foreign keys")
    assert "must be read again because a cause." in failed.reason
    assert (
        "run `sluice snapshot resume`, and allow the changes again when the snapshot of shop.child is published"
        in failed.reason
    )
    assert failed.restarts == RESTARTS_MAX
    still = failed.cascades_unseen("another cause", buffered_after=KEY)
    assert (still.state, still.reason, still.generation) == (SnapshotState.FAILED, failed.reason, failed.generation + 1)
    resumed = still.retried()
    assert (resumed.state, resumed.restarts) == (SnapshotState.WANTED, 0)
    assert next_step(resumed, THERE).step == SnapshotStep.BEGIN


@pytest.mark.found
def test_restarts_for_another_cause_do_not_make_foreign_keys_fail_the_snapshot() -> None:
    """Defect 15: after a table was altered eight times, the first change of a foreign key failed its snapshot. The message blamed foreign
    keys for all restarts.
    """
    record = read()
    for _ in range(RESTARTS_MAX):
        record = again(record.again("the table was altered", buffered_after=KEY))
    restarted = record.cascades_unseen("a cause", buffered_after=KEY)
    assert (restarted.state, restarted.restarts) == (SnapshotState.WANTED, RESTARTS_MAX + 1)
    assert restarted.restarts_for(RestartCause.CASCADES) == 1
    assert SnapshotRecord.from_json(restarted.to_json()) == restarted
    assert not restarted.retried().causes


def test_a_table_is_read_after_those_through_which_foreign_keys_change_it() -> None:
    child = read().cascades_unseen("a cause", buffered_after=100, through={"shop.parent"})
    parent = read("shop.parent")
    waits = next_step(child, THERE, [child, parent])
    assert waits.step == SnapshotStep.WAIT
    assert "through shop.parent, so Sluice reads the table after the snapshot of shop.parent is published" in waits.why
    failed = next_step(child, THERE, [child, parent.failed("it broke")])
    assert failed.why.endswith(
        "; the snapshot of shop.parent has failed: correct the cause, then use `sluice snapshot resume`"
    )
    paused = next_step(child, THERE, [child, parent.with_pause(paused=True)])
    assert paused.why.endswith("; the snapshot of shop.parent is paused: continue it with `sluice snapshot resume`")
    for ended in (parent.canceled(), dataclasses.replace(parent, state=SnapshotState.PUBLISHED)):
        assert next_step(child, THERE, [child, ended]).step == SnapshotStep.BEGIN
    assert not again(child).waits_for


@pytest.mark.parametrize("count", [1, 2, 3])
def test_tables_that_wait_for_each_other_continue(count: int) -> None:
    names = [f"shop.t{number}" for number in range(count)]
    ring = [
        read(name).cascades_unseen("a cause", buffered_after=100, through={names[(number + 1) % count]})
        for number, name in enumerate(names)
    ]
    assert [next_step(each, THERE, ring).step for each in ring] == [SnapshotStep.BEGIN] * count


@pytest.mark.found
def test_rows_are_not_published_while_an_epoch_begins_on_the_same_server() -> None:
    """Defect 87: an epoch began on the same server. The cursor was still in the old epoch, and its file counted as later than the file up
    to which the rows were read.
    """
    cursor = Position(epoch=1, file="binlog.000900", offset=4, server_uuid="u")
    begun = wanted("shop.orders", None, 0.0).began(
        cursor, version="v1", key=("id",), columns=(), rows_expected=0, now=1.0
    )
    read = begun.finished(SourceEnd(file="mysql-bin.000001", offset=500, executed=""), 2.0)
    there = SnapshotSituation(begin=cursor, cursor=cursor, version="v1", epoch=1)
    assert next_step(read, there).step == SnapshotStep.PUBLISH
    decision = next_step(read, dataclasses.replace(there, epoch=2))
    assert (decision.step, decision.why) == (SnapshotStep.WAIT, EPOCH_BEGINS)
    staged = dataclasses.replace(cursor, epoch=2, file="mysql-bin.000001", offset=900)
    assert next_step(read, dataclasses.replace(there, epoch=2, begin=staged)).step == SnapshotStep.AGAIN
    assert next_step(read, dataclasses.replace(there, epoch=2, begin=staged, cursor=staged)).step == SnapshotStep.AGAIN
