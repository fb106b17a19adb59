"""Tests what the sensor may expect of any engine, with the real engine over MySQL and with the fake that the tests of orchestration use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sluice.cdc_engine.contracts import OutstandingBatch
from sluice.cdc_engine.errors import CanalServiceError
from sluice.orchestration.base.ports import EngineHandle
from sluice.orchestration.base.testing import FakeEngine
from tests.instance.fix_destination import Captured, running
from tests.waiting import wait_for

pytestmark = pytest.mark.servers


class Subject:
    """An engine, and a function that makes one change in its table `table`."""

    def __init__(self, engine: EngineHandle, change: Callable[[], None], table: str) -> None:
        self.engine, self.change, self.table = engine, change, table

    def batch(self, *, appendable: bool = False) -> OutstandingBatch:
        """Returns the batch of one more change."""
        self.change()
        return self.handed_out(appendable=appendable)

    def handed_out(self, *, appendable: bool = False) -> OutstandingBatch:
        return wait_for("a batch is staged", lambda: self.engine.hand_out(0.5, appendable=appendable))


@pytest.fixture(params=["fake", "real"])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    if request.param == "fake":
        fake = FakeEngine(tmp_path)
        yield Subject(fake, lambda: fake.capture(1), fake.tables[0])
        return
    captured = Captured(tmp_path, request.getfixturevalue("mysql80"))
    numbers = iter(range(100))
    with running(captured) as engine:
        yield Subject(engine, lambda: captured.insert([next(numbers)]), f"{captured.database}.numbers")


def test_nothing_is_handed_out_where_nothing_changed(subject: Subject) -> None:
    assert subject.engine.outstanding() is None
    assert subject.engine.hand_out(0.0) is None


def test_a_batch_is_handed_out_again_and_again_until_it_is_settled(subject: Subject) -> None:
    batch = subject.batch()
    subject.change()
    assert subject.engine.hand_out(0.0) == batch == subject.engine.outstanding()
    assert subject.table in batch.tables


def test_an_ack_moves_on_and_the_next_batch_begins_where_it_ended(subject: Subject) -> None:
    first = subject.batch()
    subject.engine.ack(first)
    assert subject.engine.outstanding() is None
    second = subject.batch()
    assert second.start == first.end
    assert second.delivery > first.delivery


@pytest.mark.parametrize("act", ["ack", "rollback", "stop_tables"])
def test_what_is_settled_cannot_be_settled_again(subject: Subject, act: str) -> None:
    batch = subject.batch()
    subject.engine.ack(batch)
    arguments = [{subject.table: ("MERGE_FAILED", "why")}] if act == "stop_tables" else []
    with pytest.raises(CanalServiceError):
        getattr(subject.engine, act)(batch, *arguments)


def test_a_rollback_delivers_the_same_files_again(subject: Subject) -> None:
    batch = subject.batch()
    subject.engine.rollback(batch)
    again = subject.handed_out()
    assert (again.start, again.end, again.path, again.tables) == (batch.start, batch.end, batch.path, batch.tables)
    assert again.delivery > batch.delivery
    with pytest.raises(CanalServiceError):
        subject.engine.ack(batch)
    subject.engine.ack(again)


def test_a_damaged_batch_is_staged_again_from_the_same_position(subject: Subject) -> None:
    batch = subject.batch()
    subject.engine.rollback(batch, damaged=True)
    again = subject.handed_out()
    assert again.start == batch.start
    assert again.delivery > batch.delivery
    assert again.path != batch.path


def test_tables_that_stop_are_left_out_of_the_next_delivery(subject: Subject) -> None:
    batch = subject.batch()
    subject.engine.stop_tables(batch, {subject.table: ("MERGE_FAILED", "it cannot be merged")})
    again = subject.handed_out()
    assert (again.end, again.tables) == (batch.end, ())


def test_the_engine_shows_its_status_and_keeps_what_the_sensor_reports(subject: Subject) -> None:
    batch = subject.batch()
    subject.engine.report_tick()
    subject.engine.report_run(batch, "STARTED")
    subject.engine.report_waiting("waits 10 s")
    status = subject.engine.status()
    assert status.state == "RUNNING"
    assert type(status.state) is str, "it goes into Dagster's metadata, which takes no other type"
    assert status.ring_bytes_max > 0
    assert (status.stopped_tables, status.troubles) == ((), ())
    subject.engine.report_failing("2 runs in a row could not merge the table")
    assert subject.engine.directory.is_dir()


def test_a_batch_is_taken_once_with_what_came_and_keeps_its_end(subject: Subject) -> None:
    fake = isinstance(subject.engine, FakeEngine)
    before = subject.batch()
    assert not before.appendable
    assert subject.engine.take(before) == before, "from now on the engine knows that runs take their batches"
    subject.engine.ack(before)
    batch = subject.batch(appendable=True)
    assert batch.appendable
    events = subject.engine.status().ring_events
    subject.change()
    wait_for("more has come", lambda: fake or subject.engine.status().ring_events > events)
    taken = subject.engine.take(batch)
    assert taken == subject.engine.outstanding() == subject.engine.hand_out(0.0)
    assert (taken.batch_id, taken.delivery, taken.start) == (batch.batch_id, batch.delivery, batch.start)
    assert (taken.rows, taken.appendable) == (2, False)
    subject.change()
    assert subject.engine.take(batch) == taken, "every later request has the same answer"
    subject.engine.rollback(batch)
    again = subject.handed_out()
    assert (again.batch_id, again.end, again.path) == (taken.batch_id, taken.end, taken.path)
    assert subject.engine.take(again) == again
    for act in (subject.engine.take, subject.engine.ack, subject.engine.rollback):
        with pytest.raises(CanalServiceError):
            act(taken)
    subject.engine.ack(again)
    assert subject.handed_out().start == taken.end
