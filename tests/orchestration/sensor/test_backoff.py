"""Tests when a failed batch is tried again: the pauses, how consecutive failures are counted, and both in a sensor's ticks."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from dagster import DagsterRunStatus as S
from dagster._core.storage.tags import RUN_KEY_TAG
from hypothesis import given
from hypothesis import strategies as st

from sluice.orchestration.base.batch_reference import delivery_of
from sluice.orchestration.sensor.backoff import (
    AWAY_SECONDS_MAX,
    MERGE_SECONDS_MAX,
    Failed,
    failed_in_a_row,
    pause_seconds,
    remaining_seconds,
    waiting,
)
from sluice.orchestration.sensor.runs import RunStore, Said
from tests.orchestration.sensor.test_tick import JOB, Shop

SLACK_SECONDS = 4  # The time that the tests themselves may take between a failure and the next tick.
COUNTS = st.integers(0, 10_000)


def test_the_pauses() -> None:
    assert [pause_seconds(n, away=False) for n in range(9)] == [0, 0, 10, 20, 40, 80, 160, 300, 300]
    assert [pause_seconds(n, away=True) for n in range(6)] == [0, 0, 10, 20, 30, 30]


@given(COUNTS, st.booleans())
def test_pauses_grow_up_to_their_limit(count: int, away: bool) -> None:
    pause = pause_seconds(count, away=away)
    assert 0 <= pause <= pause_seconds(count + 1, away=away) <= (AWAY_SECONDS_MAX if away else MERGE_SECONDS_MAX)


@given(st.builds(Failed, in_a_row=COUNTS, ago_seconds=st.floats(-1e9, 1e9), away=st.booleans(), reason=st.text()))
def test_what_remains_of_a_pause_never_exceeds_it(failed: Failed) -> None:
    remaining = remaining_seconds(failed)
    assert 0 <= remaining <= pause_seconds(failed.in_a_row, away=failed.away)
    assert bool(waiting(failed)) == (remaining > 0)
    if failed.ago_seconds >= MERGE_SECONDS_MAX:
        assert remaining == 0


@given(st.booleans())
def test_a_table_that_can_never_be_merged_costs_few_runs(away: bool) -> None:
    """The test simulates an hour of ticks, five seconds apart, in which each run fails at once."""
    runs, ended_at = 1, 0.0
    for now in range(0, 3600, 5):
        if not waiting(Failed(in_a_row=runs, ago_seconds=now - ended_at, away=away)):
            runs, ended_at = runs + 1, float(now)
    assert runs <= (3600 / AWAY_SECONDS_MAX + 5 if away else 3600 / MERGE_SECONDS_MAX + 8)


@pytest.mark.parametrize(
    ("runs", "count"),
    [
        ([], 0),
        ([("3", S.FAILURE)], 1),
        ([("3", S.FAILURE), ("2", S.FAILURE), ("1", S.SUCCESS)], 2),
        ([("3", S.FAILURE), ("3", S.FAILURE), ("2", S.FAILURE)], 2),
        ([("3", S.CANCELED), ("2", S.FAILURE)], 0),
        ([("3", S.FAILURE), ("2", S.CANCELED), ("1", S.FAILURE)], 1),
        ([("3", S.FAILURE), ("3", S.CANCELED), ("2", S.FAILURE)], 0),
        ([("1", S.FAILURE), ("3", S.FAILURE), ("2", S.FAILURE), ("1", S.SUCCESS)], 2),
        ([("2", S.FAILURE), ("2", S.SUCCESS)], 0),
    ],
)
def test_failures_in_a_row(runs: list[tuple[str, S]], count: int) -> None:
    assert failed_in_a_row("3", runs) == count


@given(st.lists(st.tuples(st.integers(1, 9).map(str), st.sampled_from(list(S)))))
def test_no_more_failures_are_counted_than_there_are(runs: list[tuple[str, S]]) -> None:
    assert 0 <= failed_in_a_row("5", runs) <= len({delivery for delivery, status in runs if status is S.FAILURE})


class FailingShop(Shop):
    """Provides the sensor of a destination whose runs execute and fail. The test advances the clock."""

    def __init__(self, root: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(root, instance)
        real = time.time
        self.passed_seconds = 0.0
        clock = SimpleNamespace(time=lambda: real() + self.passed_seconds)
        for module in ("base.open_runs", "sensor.runs"):
            monkeypatch.setattr(f"sluice.orchestration.{module}.time", clock)

    def fail(self, request: dg.RunRequest, reason: str = "shop.items: a type differs", *, away: bool = False) -> None:
        """Executes the run of a request, which fails."""
        self.passed_seconds, self.fakes.merge.error, self.fakes.merge.away = 0.0, reason, away
        job = self.defs.resolve_job_def(JOB)
        result = job.execute_in_process(
            instance=self.instance, run_config=request.run_config, tags=dict(request.tags), raise_on_error=False
        )
        assert not result.success

    def waits(self, seconds: float = 10) -> str:
        """Runs a tick that must hand out nothing and wait about `seconds` for the next attempt. The engine's status must have the same
        message. Returns the reason in the message.
        """
        answer: Any = self.tick()
        assert not answer.run_requests
        said = str(answer.skip_message).split("; RUNNING")[0]
        assert said == self.engine.waiting
        found = re.fullmatch(r"waiting (\d+) s before the next attempt (.*)", said)
        assert found
        assert seconds - SLACK_SECONDS < int(found[1]) <= seconds
        return found[2]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FailingShop]:
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        made = FailingShop(tmp_path, instance, monkeypatch)
        made.engine.capture(5)
        yield made


def test_each_failure_in_a_row_is_waited_for_longer(shop: FailingShop) -> None:
    shop.fail(shop.request())
    for failures, pause in ((2, 10), (3, 20), (4, 40)):
        shop.fail(shop.request())
        assert shop.waits(pause) == f"({failures} runs in a row failed): shop.items: a type differs"
        shop.passed_seconds = pause / 2
        assert shop.waits(pause / 2)
        assert shop.head().delivery == failures, "the batch stays out: executing its run again by hand is still a try"
        shop.passed_seconds = pause
    assert delivery_of(shop.request().tags) == "5"
    assert shop.engine.waiting == ""


def test_fault_a_try_that_is_at_work_does_not_hide_that_those_before_it_failed(shop: FailingShop) -> None:
    """While the next attempt runs, nothing waits. The engine is still reported as failing until a batch is merged."""
    shop.fail(shop.request())
    assert shop.request()
    assert shop.engine.failing == "", "one failure is mostly a process that was killed, and costs no wait"
    shop.fail(shop.request())
    shop.waits()
    shop.passed_seconds = 10
    shop.run(shop.request(), S.STARTED)
    shop.tick()
    assert shop.engine.waiting == ""
    assert shop.engine.failing == "2 runs in a row failed, the newest with: shop.items: a type differs"


def test_while_spark_is_away_the_waits_stay_short(shop: FailingShop) -> None:
    sentence = "no Spark Connect server answers at 127.0.0.1:15002"
    for failures in range(1, 8):
        shop.fail(shop.request(), sentence, away=True)
        shop.passed_seconds = 0 if failures == 7 else AWAY_SECONDS_MAX
    assert shop.waits(30) == f"(7 runs in a row failed): {sentence}"
    shop.passed_seconds = AWAY_SECONDS_MAX
    assert shop.request()


def test_a_success_ends_the_row(shop: FailingShop) -> None:
    for _ in range(2):
        shop.fail(shop.request())
    assert shop.waits()
    shop.passed_seconds = 10
    shop.run(shop.request(), S.SUCCESS)
    shop.engine.capture(5)
    shop.fail(shop.request())
    assert delivery_of(shop.request().tags) == "5", "the first failure of a new row costs no wait"


def test_a_run_ended_by_hand_comes_again_at_once(shop: FailingShop) -> None:
    for _ in range(3):
        shop.fail(shop.request())
        shop.passed_seconds = 20
    shop.run(shop.request(), S.CANCELED)
    assert delivery_of(shop.request().tags) == "5"


def test_executing_the_failed_run_again_by_hand_needs_no_wait(shop: FailingShop) -> None:
    shop.fail(shop.request())
    again = shop.request()
    shop.fail(again)
    assert shop.waits()
    shop.run(again, S.SUCCESS)
    assert shop.tick().skip_message.startswith("nothing waits")
    assert shop.engine.acked == [2]
    assert shop.engine.waiting == ""


@pytest.mark.found
@pytest.mark.parametrize("status", [S.FAILURE, S.CANCELED, S.STARTING])
@pytest.mark.parametrize("drained", [False, True])
def test_executing_the_run_of_an_older_delivery_again_by_hand_shortens_no_wait(
    shop: FailingShop, status: S, drained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 1112: an operator executed the run of an older delivery again. If this run was canceled, had not ended, or had drained,
    the failures before it did not count, and the next wait was short. If it failed, a table that cannot be merged stopped later.
    """
    first = shop.request()
    shop.fail(first)
    for pause in (0, 10):
        shop.passed_seconds = pause
        shop.fail(shop.request())
    again = shop.run(first, status)
    if drained:
        shop.instance.add_run_tags(again.run_id, {RUN_KEY_TAG: "its first batch"})
    shop.passed_seconds = 20
    shop.fail(shop.request())
    looked, what_failed = list[str](), RunStore._what_failed

    def recorded(runs: RunStore, run_id: str) -> Said:
        looked.append(run_id)
        return what_failed(runs, run_id)

    monkeypatch.setattr(RunStore, "_what_failed", recorded)
    assert shop.waits(40) == "(4 runs in a row failed): shop.items: a type differs"
    assert again.run_id not in looked, "its failure says nothing about the tables"


def test_a_run_that_could_not_say_why_it_failed_is_waited_for_too(shop: FailingShop) -> None:
    for _ in range(2):
        run = shop.run(shop.request(), S.STARTED)
        shop.instance.report_run_failed(run, message="its process was killed")
    assert shop.waits() == "(2 runs in a row failed): its process was killed"
