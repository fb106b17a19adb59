"""Tests ticks while a run drains. The run takes a batch that no run has taken. A batch that the run merged is settled by the run's
record.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster import DagsterRunStatus as S

from sluice.cdc_engine.contracts import OutstandingBatch
from sluice.orchestration.base.batch_reference import DRAIN, RUNS_TAG, BatchReference, delivery_of
from sluice.orchestration.rpc import run_endpoint
from sluice.orchestration.run.drain_run import claim_of
from sluice.orchestration.sensor import tick
from sluice.orchestration.sensor.runs import RunStore
from sluice.orchestration.sensor.settle import EndRun, Reissue, Rollback, RunRecord, SettleWait, decide
from tests.orchestration.sensor.test_tick import JOB, TICK_SECONDS, Shop


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setattr("sluice.orchestration.sensor.tick.TICK_SECONDS_MAX", TICK_SECONDS)
    monkeypatch.setattr(tick, "DRAINING_LOOK_SECONDS", 0.05)
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        made = Shop(tmp_path, instance, runs="drain")
        made.engine.directory.mkdir(parents=True, exist_ok=True)
        made.engine.capture(5)
        yield made


def attached(shop: Shop, status: S = S.STARTED) -> dg.DagsterRun:
    """Returns a run that has merged and settled its first batch."""
    run = shop.run(shop.request(), status)
    shop.engine.ack(shop.head())
    return run


def take(shop: Shop, run: dg.DagsterRun) -> None:
    """Acts as a run that was handed the oldest batch in flight."""
    assert claim_of(shop.instance, run.run_id)(BatchReference.of("shop", shop.head())) == ""


def test_a_run_of_a_draining_destination_says_so_and_finds_an_rpc_endpoint(shop: Shop) -> None:
    assert shop.request().tags[RUNS_TAG] == DRAIN
    path = shop.engine.directory / run_endpoint.RUN_ENDPOINT_FILE
    assert set(json.loads(path.read_text())) == {"address", "token", "host"}
    assert path.stat().st_mode & 0o077 == 0, "the token is its owner's alone"


def test_what_comes_while_a_run_drains_is_left_to_it(shop: Shop) -> None:
    attached(shop)
    answer = shop.tick()
    assert not answer.run_requests
    assert "drains and takes the next batches" in answer.skip_message
    shop.engine.capture(5)
    assert shop.engine.head is None, "the run asks for it, not the tick"
    shop.engine.hand_out(0)
    answer = shop.tick()
    assert not answer.run_requests
    assert "drains and takes the batch next" in answer.skip_message


def test_a_batch_that_was_never_taken_gets_a_run_once_none_drains(shop: Shop) -> None:
    run = attached(shop)
    shop.engine.capture(5)
    shop.engine.hand_out(0)
    assert not shop.tick().run_requests
    shop.instance.report_run_failed(run)
    assert delivery_of(shop.request().tags) == "2"
    assert shop.engine.rolled_back == [], "nobody was at it"


def test_a_batch_that_a_run_was_handed_in_the_same_moment_is_left_to_it(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = shop.request()
    shop.engine.ack(shop.head())
    shop.engine.capture(5)
    hand_out = shop.engine.hand_out

    def during_a_run(timeout_seconds: float, *, appendable: bool) -> OutstandingBatch | None:
        shop.run(first, S.STARTED)
        return hand_out(timeout_seconds, appendable=appendable)

    monkeypatch.setattr(shop.engine, "hand_out", during_a_run)
    answer = shop.tick()
    assert not answer.run_requests
    assert "drains and takes the batch next" in answer.skip_message


def test_a_batch_that_a_run_took_and_failed_in_the_same_moment_waits_for_the_next_tick(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = attached(shop)
    shop.engine.capture(5)
    hand_out = shop.engine.hand_out
    monkeypatch.setattr(tick.Ticker, "_leave_to_draining", lambda *_: "")  # The check passed before.

    def during_a_run(timeout_seconds: float, *, appendable: bool) -> OutstandingBatch | None:
        batch = hand_out(timeout_seconds, appendable=appendable)
        take(shop, run)
        shop.instance.report_run_failed(run)
        return batch

    monkeypatch.setattr(shop.engine, "hand_out", during_a_run)
    answer = shop.tick()
    assert not answer.run_requests, "its failure is settled first, with what it says of tables and waits"
    assert "has just taken delivery 2" in answer.skip_message
    monkeypatch.setattr(shop.engine, "hand_out", hand_out)
    assert delivery_of(shop.request().tags) == "3"
    assert shop.engine.rolled_back == [2]


def test_batches_that_a_draining_run_merged_before_it_failed_end_the_row_of_failures(shop: Shop) -> None:
    # There are two runs, each of which merges one batch and fails at the next.
    for number, delivery in enumerate((2, 4), start=1):
        run = attached(shop)
        shop.engine.capture(5)
        shop.engine.hand_out(0)
        take(shop, run)
        shop.instance.report_run_failed(run)
        failed = RunStore(shop.instance, JOB).failed(
            BatchReference.of("shop", shop.head()), RunRecord(run_id=run.run_id, status=S.FAILURE)
        )
        assert (shop.head().delivery, failed.in_a_row) == (delivery, 1), number


@pytest.mark.parametrize("status", [S.FAILURE, S.CANCELED])
def test_a_batch_whose_run_ended_during_it_is_rolled_back(shop: Shop, status: S) -> None:
    run = attached(shop)
    shop.engine.capture(5)
    shop.engine.hand_out(0)
    take(shop, run)
    assert not shop.tick().run_requests
    end = shop.instance.report_run_failed if status is S.FAILURE else shop.instance.report_run_canceled
    end(run)
    assert delivery_of(shop.request().tags) == "3"
    assert shop.engine.rolled_back == [2]
    assert shop.engine.acked == [1]


def test_a_merged_batch_that_was_not_settled_is_acked_by_its_record(shop: Shop) -> None:
    run = attached(shop)
    shop.engine.capture(5)
    shop.engine.hand_out(0)
    take(shop, run)
    shop.succeed(run)
    shop.tick()
    assert shop.engine.acked == [1, 2]


@pytest.mark.found
def test_a_batch_of_a_restored_ledger_gets_another_number_if_a_draining_run_has_settled_it(shop: Shop) -> None:
    """Defect 1039: the batch never got a run, because Dagster starts no second run for a run key, and the tags of the first run named a
    later batch.
    """
    run = shop.run(shop.request(), S.STARTED)
    copy = shop.head()
    shop.engine.ack(copy)
    shop.engine.capture(5)
    shop.engine.hand_out(0)
    take(shop, run)
    shop.engine.ack(shop.head())
    shop.succeed(run)
    shop.engine.head = copy
    request = shop.request()
    assert not shop.instance.get_runs(dg.RunsFilter(tags={"dagster/run_key": request.run_key or ""}))
    assert shop.engine.rolled_back == [1]
    assert BatchReference.of("shop", shop.head()).run_key == request.run_key


def test_a_run_that_dagster_gave_up_claims_nothing(shop: Shop) -> None:
    run = attached(shop)
    shop.instance.report_run_failed(run)
    shop.engine.capture(5)
    shop.engine.hand_out(0)
    assert "FAILURE" in claim_of(shop.instance, run.run_id)(BatchReference.of("shop", shop.head()))
    found = shop.instance.get_run_by_id(run.run_id)
    assert found is not None
    assert delivery_of(found.tags) == "1"


def test_an_idle_run_that_holds_the_drain_lock_is_not_lost(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]

    def look() -> float:
        clock[0] += 0.05
        return clock[0]

    monkeypatch.setattr("sluice.orchestration.sensor.tick.time.monotonic", look)
    run = attached(shop)
    shop.fakes.files.drained_by = 77
    for clock[0] in (2000.0, 3000.0):
        shop.tick()
    assert not _found(shop, run).is_finished
    shop.fakes.files.drained_by = None
    for clock[0] in (4000.0, 4031.0):
        shop.tick()
    assert _found(shop, run).status is S.FAILURE


def _found(shop: Shop, run: dg.DagsterRun) -> dg.DagsterRun:
    found = shop.instance.get_run_by_id(run.run_id)
    assert found is not None
    return found


DRAINS = RunRecord(run_id="d" * 8, status=S.STARTED, drains=True)
LOST = RunRecord(run_id="d" * 8, status=S.STARTED, drains=True, lock_free_seconds=99)


@pytest.mark.parametrize(
    ("of_batch", "draining", "decision"),
    [
        ([], [], Reissue),
        ([], [DRAINS], SettleWait),
        ([], [LOST], EndRun),
        ([RunRecord(run_id="n", status=S.NOT_STARTED)], [DRAINS], SettleWait),
        ([RunRecord(run_id="n", status=S.NOT_STARTED)], [], Reissue),
        ([RunRecord(run_id="f", status=S.FAILURE)], [DRAINS], Rollback),
        ([RunRecord(run_id="f", status=S.FAILURE), DRAINS], [DRAINS], SettleWait),
    ],
)
def test_a_batch_that_no_run_has_taken_is_that_of_the_run_that_drains(
    of_batch: list[RunRecord], draining: list[RunRecord], decision: type
) -> None:
    assert isinstance(decide(of_batch, draining), decision)
