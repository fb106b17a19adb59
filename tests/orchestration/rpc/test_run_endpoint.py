"""The RPC endpoint for runs, over a real connection: what `ports.RunEngine` promises, and which callers are refused."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.cdc_engine.contracts import OutstandingBatch
from sluice.cdc_engine.errors import BatchNotFoundError, LeaseLostError, MetaError, SluiceError, StagingError
from sluice.orchestration.base.batch_reference import BatchReference
from sluice.orchestration.base.ports import RunEngineAwayError
from sluice.orchestration.base.testing import FakeEngine, FakeHost
from sluice.orchestration.rpc import connection, run_endpoint
from sluice.orchestration.rpc.access import RUN_REQUEST_BYTES_MAX
from sluice.orchestration.rpc.connection import EngineAwayError
from sluice.orchestration.rpc.run_caller import RunCaller
from sluice.orchestration.rpc.run_endpoint import RUN_ENDPOINT_FILE, RunEndpoint


class House:
    """An engine, its endpoint and a caller."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "shop"
        self.directory.mkdir()
        self.engine = FakeEngine(directory)
        self.host = FakeHost(self.engine)
        self.closing = False
        self.endpoint = self.opened()
        self.caller = RunCaller(self.directory, "shop")

    def opened(self) -> RunEndpoint:
        made = RunEndpoint(lambda: self.host, lambda: self.closing)
        made.open_for(self.directory)
        return made


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path)
    yield made
    made.caller.close()
    made.endpoint.close()


def test_batches_are_handed_out_and_acked_by_reference(house: House) -> None:
    assert house.caller.hand_out(0.0).reference is None
    house.engine.capture(5)
    reference = house.caller.hand_out(0.0).reference
    assert reference is not None
    assert house.engine.head is not None
    assert reference == BatchReference.of("shop", house.engine.head)
    assert house.caller.hand_out(0.0).reference == reference, "repeatable"
    house.caller.ack(reference)
    assert house.engine.acked == [1]
    with pytest.raises(BatchNotFoundError):
        house.caller.ack(reference)


def test_a_batch_of_another_ledger_or_delivery_is_not_acked(house: House) -> None:
    house.engine.capture(5)
    reference = house.caller.hand_out(0.0).reference
    assert reference is not None
    for other in ({"ledger": "ffffffffffff"}, {"delivery": 7}, {"batch": 5}):
        with pytest.raises(BatchNotFoundError):
            house.caller.ack(BatchReference(**{**reference.to_config(), **other}))
    assert house.engine.acked == []


def appendable(house: House) -> tuple[OutstandingBatch, BatchReference]:
    """A batch of five changes whose end is not fixed, and one more change."""
    house.engine.capture(5)
    batch = house.engine.hand_out(0.0, appendable=True)
    assert batch is not None
    house.engine.capture(1)
    return batch, BatchReference.of("shop", batch)


@pytest.mark.parametrize("why", ["", "not wanted", "the process is to end"])
def test_a_batch_is_taken_by_reference_with_what_came_unless_the_process_is_to_end(house: House, why: str) -> None:
    batch, reference = appendable(house)
    house.closing = why == "the process is to end"
    house.caller.take(reference, append=why != "not wanted")
    taken = house.engine.head
    assert taken is not None
    assert (taken.appendable, taken.end.offset - batch.end.offset) == (False, 0 if why else 1)
    house.closing = False
    house.caller.take(reference, append=True)
    assert house.engine.head == taken, "repeatable"
    house.caller.ack(reference)
    with pytest.raises(BatchNotFoundError):
        house.caller.take(reference, append=True)


def test_a_batch_that_is_handed_out_to_a_run_has_a_fixed_end(house: House) -> None:
    _, reference = appendable(house)
    assert house.caller.hand_out(0.0).reference == reference
    assert house.engine.head is not None
    assert not house.engine.head.appendable


@pytest.mark.found
@pytest.mark.parametrize("rolled_back_first", [True, False])
def test_a_request_whose_answer_is_late_leaves_one_batch_whatever_comes_first(
    house: House, monkeypatch: pytest.MonkeyPatch, rolled_back_first: bool
) -> None:
    """Number 3: an engine that stalls was taken for one that is away. Its late answer reaches nobody, and what it did stands."""
    batch, reference = appendable(house)
    take, may_end, ended = house.engine.take, threading.Event(), threading.Event()

    def late(batch: OutstandingBatch, *, append: bool = True) -> OutstandingBatch:
        assert may_end.wait(60)
        try:
            return take(batch, append=append)
        finally:
            ended.set()

    house.engine.take = late  # type: ignore[method-assign]
    monkeypatch.setattr(connection, "ANSWER_SECONDS_MAX", 0.2)
    with pytest.raises(RunEngineAwayError, match=r"has not answered for 0\.2 s"):
        house.caller.take(reference, append=True)
    monkeypatch.undo()
    if rolled_back_first:
        house.engine.rollback(batch)
    may_end.set()
    assert ended.wait(60)
    assert house.engine.head is not None
    assert (house.engine.head.delivery, house.engine.head.appendable) == (2 if rolled_back_first else 1, False)
    assert (house.engine.head.end == batch.end) is rolled_back_first


@pytest.mark.parametrize("error", [MetaError("the ledger did not answer"), EngineAwayError("the engine host hangs")])
def test_a_request_whose_outcome_the_engine_does_not_know_is_an_error(house: House, error: SluiceError) -> None:
    _, reference = appendable(house)

    def fail(_: OutstandingBatch, *, append: bool = True) -> OutstandingBatch:
        raise error

    house.engine.take = fail  # type: ignore[method-assign,assignment]
    with pytest.raises(SluiceError, match=str(error)):
        house.caller.take(reference, append=True)


def test_an_error_of_the_engine_is_raised_in_the_run(house: House) -> None:
    house.host.error = StagingError("no space left in staging/")
    with pytest.raises(StagingError, match="no space left"):
        house.caller.hand_out(0.0)


def test_an_engine_that_is_elsewhere_or_starts_is_away(house: House) -> None:
    house.host.error = LeaseLostError("process 7 holds it")
    with pytest.raises(RunEngineAwayError, match="process 7 holds it"):
        house.caller.hand_out(0.0)
    house.host.error, house.host.starting = None, 1
    with pytest.raises(RunEngineAwayError, match="being started"):
        house.caller.hand_out(0.0)
    assert house.caller.hand_out(0.0).reference is None


def test_a_process_that_is_to_end_sends_runs_away_and_still_settles(house: House) -> None:
    house.engine.capture(5)
    reference = house.caller.hand_out(0.0).reference
    assert reference is not None
    house.closing = True
    assert house.caller.hand_out(0.0).leave
    house.caller.ack(reference)
    assert house.engine.acked == [1]


def test_while_the_sensor_is_off_nothing_is_handed_out(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.engine.capture(5)
    monkeypatch.setattr(run_endpoint, "TICK_SILENCE_SECONDS_MAX", 0.0)
    offer = house.caller.hand_out(0.0)
    assert offer.reference is None
    assert "switched off" in offer.leave
    assert house.engine.head is None
    monkeypatch.undo()
    house.endpoint.open_for(house.directory)
    assert house.caller.hand_out(0.0).reference is not None


def test_a_caller_with_another_token_is_refused(house: House) -> None:
    path = house.directory / RUN_ENDPOINT_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), "token": "0" * 32}))
    with pytest.raises(RunEngineAwayError, match="refuses the token"):
        house.caller.hand_out(0.0)


def test_a_request_is_limited_before_its_token_is_checked(house: House) -> None:
    """A run's request names a batch; the limit of ticks' requests would let any local process fill the memory."""
    with pytest.raises(RunEngineAwayError, match="RESOURCE_EXHAUSTED"):
        house.caller._ask("run_ack", reference="x" * RUN_REQUEST_BYTES_MAX)


def test_an_endpoint_at_another_port_is_found(house: House) -> None:
    house.caller.hand_out(0.0)
    house.endpoint.close()
    with pytest.raises(RunEngineAwayError):
        house.caller.hand_out(0.0)
    house.endpoint = house.opened()
    house.engine.capture(5)
    assert house.caller.hand_out(0.0).reference is not None


@pytest.mark.parametrize("text", ["", "[]", '{"address": 1}', None])
def test_an_endpoint_file_that_is_missing_or_unreadable_counts_as_away(house: House, text: str | None) -> None:
    path = house.directory / RUN_ENDPOINT_FILE
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(RunEngineAwayError, match="no RPC endpoint"):
        house.caller.hand_out(0.0)
