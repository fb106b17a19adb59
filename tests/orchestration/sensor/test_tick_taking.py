"""Tests ticks that occur while a run takes its batch. The end of the batch changes. The batch's name and its run do not change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster import DagsterRunStatus as S

from sluice.cdc_engine.contracts import OutstandingBatch
from sluice.cdc_engine.errors import BatchNotFoundError
from sluice.orchestration.base.batch_reference import RUNS_TAG, BatchReference, delivery_of
from sluice.orchestration.sensor import tick
from sluice.orchestration.sensor.runs import RunStore
from sluice.orchestration.sensor.settle import RunRecord
from tests.orchestration.sensor.test_tick import TICK_SECONDS, Shop


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setattr(tick, "TICK_SECONDS_MAX", TICK_SECONDS)
    monkeypatch.setattr(tick, "LOOK_SECONDS", 0.05)
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        made = Shop(tmp_path, instance)
        made.engine.directory.mkdir(parents=True, exist_ok=True)
        yield made


def waiting(shop: Shop) -> tuple[dg.DagsterRun, OutstandingBatch]:
    """Returns the run of a batch that it has not taken, with more changes than were staged."""
    shop.engine.capture(5)
    request = shop.request()
    assert RUNS_TAG not in request.tags
    run = shop.run(request, S.STARTED)
    shop.engine.capture(2)
    return run, shop.head()


def test_a_batch_that_was_taken_is_still_that_of_its_run(shop: Shop) -> None:
    run, before = waiting(shop)
    assert before.appendable
    taken = shop.engine.take(before)
    assert taken.end.offset > before.end.offset
    assert BatchReference.of("shop", taken) == BatchReference.of("shop", before)
    assert not shop.tick().run_requests
    shop.succeed(run)
    shop.tick()
    assert (shop.engine.acked, shop.engine.acked_up_to) == ([1], taken.end.offset)
    assert shop.engine.rolled_back == []


def test_a_batch_whose_run_died_before_it_took_it_comes_again_with_a_fixed_end(shop: Shop) -> None:
    run, before = waiting(shop)
    shop.instance.report_run_failed(run)
    assert delivery_of(shop.request().tags) == "2"
    assert (shop.head().end, shop.head().appendable) == (before.end, False)
    with pytest.raises(BatchNotFoundError):
        shop.engine.take(before)


def test_a_batch_that_was_taken_and_failed_comes_again_as_it_was_taken(shop: Shop) -> None:
    run, before = waiting(shop)
    taken = shop.engine.take(before)
    shop.instance.report_run_failed(run)
    again = shop.request()
    assert delivery_of(again.tags) == "2", "at once: it is the first failure"
    assert (shop.head().end, shop.head().path) == (taken.end, taken.path)
    shop.run(again, S.FAILURE)
    assert "2 runs in a row failed" in shop.tick().skip_message


def test_a_batch_that_its_run_takes_and_merges_during_a_tick_is_acked_up_to_its_end(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tick has read the batch before the run took it."""
    run, before = waiting(shop)
    of_batch = RunStore.of_batch

    def during_the_run(store: RunStore, reference: BatchReference) -> list[RunRecord]:
        if shop.head().appendable:
            shop.engine.take(before)
            shop.succeed(run)
        return of_batch(store, reference)

    monkeypatch.setattr(RunStore, "of_batch", during_the_run)
    shop.tick()
    assert (shop.engine.acked, shop.engine.acked_up_to) == ([1], 11)
