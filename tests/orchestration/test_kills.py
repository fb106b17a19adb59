"""Real processes and real kills: code server, daemon and runs, around a real ledger and a real run lock.

The tests share one stack and each begins when all is acked; after each, every change is in the lake once and in order.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator

import dagster as dg
import pytest
from dagster import DagsterRunStatus as S

from cdc_engine import destination_files
from tests.orchestration.fix_stack import DagsterStack, stack
from tests.waiting import wait_for

__all__ = ["stack"]


@pytest.fixture
def shop(stack: DagsterStack) -> Iterator[DagsterStack]:
    yield stack
    for gate in ("before", "after"):
        stack.open(gate)
    stack.wait_until_acked(int((stack.directory / "captured").read_text()))
    stack.require_lake_equals_source()


def delivery(shop: DagsterStack) -> int:
    head = shop.head()
    assert head is not None
    return head.delivery


def test_changes_are_merged_by_runs_and_acked(
    shop: DagsterStack, record_property: Callable[[str, object], None]
) -> None:
    began = time.time()
    shop.wait_until_acked(shop.capture(3))
    record_property("first_batch_seconds", time.time() - began)
    for _ in range(2):
        shop.wait_until_acked(shop.capture(5))
    assert {run.status for run in shop.instance.get_runs()} == {S.SUCCESS}
    event = shop.instance.get_latest_materialization_event(dg.AssetKey(["shop", "shop", "orders"]))
    assert event is not None
    assert event.asset_materialization is not None
    assert event.asset_materialization.metadata["rows_inserted"].value == 5
    observed = shop.instance.fetch_observations(dg.AssetKey(["shop", "engine"]), limit=100).records
    assert observed, "the sensor publishes"
    assert len(observed) <= 1 + (time.time() - shop.started_at) / 60
    results = shop.instance.event_log_storage.get_latest_asset_check_execution_by_key(
        [dg.AssetCheckKey(dg.AssetKey(["shop", "shop", "orders"]), "flowing")]
    )
    assert [record.status.value for record in results.values()] == ["SUCCEEDED"]


@pytest.mark.parametrize("gate", ["before", "after"])
def test_a_killed_run_is_rolled_back_and_its_changes_come_again(shop: DagsterStack, gate: str) -> None:
    shop.shut(gate)
    shop.capture(4)
    victim = shop.reached(gate)
    killed = delivery(shop)
    shop.open(gate)
    os.kill(victim, signal.SIGKILL)
    wait_for("the batch has another delivery", lambda: (head := shop.head()) is None or head.delivery > killed)
    (run,) = shop.runs_of(killed)
    assert shop.wait_until_ended(run.run_id).status is S.FAILURE


def test_a_terminated_run_is_rolled_back(shop: DagsterStack) -> None:
    shop.shut("before")
    shop.capture(4)
    shop.reached("before")
    ended = delivery(shop)
    (run,) = shop.runs_of(ended)
    assert shop.instance.run_coordinator.cancel_run(run.run_id)
    assert shop.wait_until_ended(run.run_id).status is S.CANCELED
    shop.open("before")
    wait_for("the batch has another delivery", lambda: (head := shop.head()) is None or head.delivery > ended)


def test_an_old_run_executed_again_fails_and_touches_nothing(shop: DagsterStack) -> None:
    before = shop.lake()
    old = next(run for run in shop.instance.get_runs() if run.status is S.SUCCESS)
    again = shop.wait_until_ended(shop.execute_again(old))
    assert again.status is S.FAILURE
    failure = next(
        record.event_log_entry.dagster_event
        for record in shop.instance.get_records_for_run(again.run_id, of_type=dg.DagsterEventType.STEP_FAILURE).records
    )
    assert failure is not None
    data = failure.step_failure_data.user_failure_data
    assert data is not None
    assert "already acked or rolled back" in str(data.description)
    assert shop.lake() == before


def test_a_run_outlives_its_code_server_and_is_acked_by_the_next(shop: DagsterStack) -> None:
    shop.shut("before")
    shop.capture(4)
    orphan = shop.reached("before")
    merged = delivery(shop)
    shop.kill_code_server()
    shop.code_server = shop.start_code_server()
    shop.open("before")
    shop.wait_until_acked(int((shop.directory / "captured").read_text()))
    (run,) = shop.runs_of(merged)
    assert run.status is S.SUCCESS, f"process {orphan} merged it, and its success counts"


def test_code_server_and_run_killed_together_go_on(shop: DagsterStack) -> None:
    """Nobody is left to say that the run failed: it counts as STARTED until its run lock was seen free for a while."""
    shop.shut("after")
    shop.capture(4)
    victim = shop.reached("after")
    killed = delivery(shop)
    shop.kill_code_server()
    os.kill(victim, signal.SIGKILL)
    wait_for("the run lock is free", lambda: not destination_files.run_lock_held(shop.directory))
    (run,) = shop.runs_of(killed)
    assert run.status is S.STARTED
    shop.open("after")
    shop.code_server = shop.start_code_server()
    assert shop.wait_until_ended(run.run_id, 90).status is S.FAILURE
