"""Ticks while a run extends its batch: the batch with another delivery still belongs to that run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster import DagsterRunStatus as S

from sluice.orchestration.base.batch_reference import BATCH, RUNS_TAG, BatchReference, delivery_of
from sluice.orchestration.run.claim import claim_of
from sluice.orchestration.sensor import tick
from sluice.orchestration.sensor.settle import Reissue, RunRecord, SettleWait, decide
from tests.orchestration.sensor.test_tick import TICK_SECONDS, Shop


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setattr(tick, "TICK_SECONDS_MAX", TICK_SECONDS)
    monkeypatch.setattr(tick, "LOOK_SECONDS", 0.05)
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        made = Shop(tmp_path, instance)
        made.engine.directory.mkdir(parents=True, exist_ok=True)
        yield made


def test_a_batch_that_grew_is_that_of_the_run_that_it_grew_for(shop: Shop) -> None:
    shop.engine.capture(5)
    request = shop.request()
    assert request.tags[RUNS_TAG] == BATCH
    run = shop.run(request, S.STARTED)
    shop.engine.capture(2)
    shop.engine.append_to(shop.head())
    answer = shop.tick()
    assert not answer.run_requests, "its tags do not name it yet"
    assert "has it next" in answer.skip_message
    assert claim_of(shop.instance, run.run_id, BATCH)(BatchReference.of("shop", shop.head())) == ""
    assert not shop.tick().run_requests
    shop.succeed(run)
    shop.tick()
    assert shop.engine.acked == [2]
    assert shop.engine.rolled_back == []


def test_a_batch_that_grew_gets_a_run_where_the_one_it_grew_for_died_before_it_claimed_it(shop: Shop) -> None:
    shop.engine.capture(5)
    run = shop.run(shop.request(), S.STARTED)
    shop.engine.capture(2)
    shop.engine.append_to(shop.head())
    shop.instance.report_run_failed(run)
    assert delivery_of(shop.request().tags) == "2"
    assert shop.engine.rolled_back == [], "nobody was at it"


def test_a_batch_that_grew_and_failed_is_rolled_back_and_counted_once(shop: Shop) -> None:
    shop.engine.capture(5)
    run = shop.run(shop.request(), S.STARTED)
    shop.engine.capture(2)
    claim_of(shop.instance, run.run_id, BATCH)(BatchReference.of("shop", shop.engine.append_to(shop.head())))
    shop.instance.report_run_failed(run)
    again = shop.request()
    assert delivery_of(again.tags) == "3", "at once: it is the first failure"
    assert shop.engine.rolled_back == [2]
    shop.run(again, S.FAILURE)
    assert "2 failed in a row" in shop.tick().skip_message


def test_a_batch_that_no_run_has_claimed_is_that_of_the_open_run_that_may() -> None:
    grows = RunRecord(run_id="g" * 8, status=S.STARTED, grows=True)
    assert isinstance(decide([], [grows]), SettleWait)
    assert isinstance(decide([]), Reissue)
