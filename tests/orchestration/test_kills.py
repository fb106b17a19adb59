"""Tests what happens if runs or the code server are killed. Dagster's processes, the ledger, the run lock and the RPC endpoint are real.

The tests share one stack. Each test begins when all changes are acked. After each test, every change is in the lake once and in order. In
the first tests, a run merges one batch. Then a new code server starts runs that drain.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster import DagsterRunStatus as S

from sluice.cdc_engine import destination_files
from sluice.cdc_engine.contracts import OutstandingBatch
from sluice.orchestration.base import failpoints
from sluice.orchestration.base.batch_reference import DRAIN, RUNS_TAG
from tests.orchestration.fix_stack import DagsterStack, stack
from tests.waiting import wait_for

pytestmark = pytest.mark.servers

__all__ = ["stack"]


@pytest.fixture
def shop(stack: DagsterStack) -> Iterator[DagsterStack]:
    yield stack
    for gate in ("before", "after", "take"):
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
    event = shop.instance.get_latest_materialization_event(dg.AssetKey(["shop", "orders"]))
    assert event is not None
    assert event.asset_materialization is not None
    assert event.asset_materialization.metadata["rows_inserted"].value == 5
    observed = shop.instance.fetch_observations(dg.AssetKey(["shop", "engine"]), limit=100).records
    assert observed, "the sensor publishes"
    assert len(observed) <= 1 + (time.time() - shop.started_at) / 60
    results = shop.instance.event_log_storage.get_latest_asset_check_execution_by_key(
        [dg.AssetCheckKey(dg.AssetKey(["shop", "orders"]), "flowing")]
    )
    assert [record.status.value for record in results.values()] == ["SUCCEEDED"]


@pytest.mark.parametrize("gate", ["before"])
def test_a_killed_run_is_rolled_back_and_its_changes_come_again(shop: DagsterStack, gate: str) -> None:
    _kill_a_run(shop, gate)


def _held_at(shop: DagsterStack, point: str) -> tuple[OutstandingBatch, int, Path]:
    """Stops a run or its engine at a point of the request for a batch, with more changes than were staged. Returns the batch as it was
    staged, the number of the last change, and the gate.
    """
    gate = shop.failpoints / point
    gate.with_suffix(".reached").unlink(missing_ok=True)
    gate.touch()
    shop.capture(4)
    staged = wait_for("a batch is staged", shop.head)
    end = shop.capture(2)  # These changes arrive while its run starts.
    wait_for("the run requests its batch", lambda: _written(gate.with_suffix(".reached")))
    return staged, end, gate


@pytest.mark.parametrize("point", [failpoints.BEFORE_TAKE, failpoints.AFTER_TAKE])
def test_a_run_killed_during_its_request_is_rolled_back_and_its_batch_comes_again(
    shop: DagsterStack, point: str
) -> None:
    staged, end, gate = _held_at(shop, point)
    taken = shop.head()
    assert taken is not None
    assert (taken.batch_id, taken.delivery, taken.start) == (staged.batch_id, staged.delivery, staged.start)
    assert (taken.rows, taken.appendable) == ((4, True) if point == failpoints.BEFORE_TAKE else (6, False))
    (run,) = shop.runs_of(staged.delivery)
    os.kill(_process_of_run(shop), signal.SIGKILL)
    wait_for("the batch has another delivery", lambda: (head := shop.head()) is None or head.delivery > staged.delivery)
    gate.unlink()
    shop.wait_until_acked(end)
    assert shop.wait_until_ended(run.run_id).status is S.FAILURE
    merged = [line["batch"] for line in shop.lake()]
    assert Path(taken.path).name in merged, "the batch that came again has the end that it had"


def test_a_request_that_is_repeated_after_the_engine_died_has_the_same_answer(shop: DagsterStack) -> None:
    staged, end, gate = _held_at(shop, failpoints.AFTER_TAKE)
    taken = shop.head()
    assert taken is not None
    shop.kill_code_server()
    gate.unlink()
    shop.capture(3)  # They belong to the next batch, because the end is fixed.
    shop.code_server = shop.start_code_server()
    shop.wait_until_acked(end)
    merged = next(line for line in shop.lake() if line["batch"] == Path(taken.path).name)
    assert (len(merged["numbers"]), taken.delivery) == (6, staged.delivery)


@pytest.mark.found
@pytest.mark.parametrize("stopped", [True, False])
def test_a_run_whose_engine_stalls_during_its_request_ends_before_it_writes(shop: DagsterStack, stopped: bool) -> None:
    """Defect 3: the engine stalled, and the run stopped waiting and merged the batch as it was. The engine replaced the batch during this
    merge.
    """
    before = shop.lake()
    shop.shut("take")
    shop.capture(4)
    server = shop.reached("take")
    requested = delivery(shop)
    end = shop.capture(2)
    if stopped:
        os.kill(server, signal.SIGSTOP)
    try:
        (run,) = shop.runs_of(requested)
        assert shop.wait_until_ended(run.run_id, 90).status is S.FAILURE
        assert shop.lake() == before
    finally:
        shop.open("take")
        os.kill(server, signal.SIGCONT)
    shop.wait_until_acked(end)
    assert shop.runs_of(requested)[0].status is S.FAILURE


def _process_of_run(shop: DagsterStack) -> int:
    """Returns the process that has the file of the run lock open. The code server opens the file for a moment only."""
    lock = str(shop.directory / "run.lock")
    (found,) = [
        each.pid
        for each in shop.left_over()
        if each.pid != shop.code_server.pid and any(file.path == lock for file in each.open_files())
    ]
    return found


def _written(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _kill_a_run(shop: DagsterStack, gate: str) -> None:
    shop.shut(gate)
    shop.capture(4)
    victim = shop.reached(gate)
    killed = delivery(shop)
    shop.open(gate)
    os.kill(victim, signal.SIGKILL)
    wait_for("the batch has another delivery", lambda: (head := shop.head()) is None or head.delivery > killed)
    (run,) = shop.runs_of(killed)
    assert shop.wait_until_ended(run.run_id).status is S.FAILURE


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


def _outlived(shop: DagsterStack) -> int:
    """Kills and replaces the code server while a run waits before its merge. Returns the delivery that this run then merges."""
    shop.shut("before")
    shop.capture(4)
    assert shop.reached("before")
    merged = delivery(shop)
    shop.kill_code_server()
    shop.code_server = shop.start_code_server()
    shop.open("before")
    shop.wait_until_acked(int((shop.directory / "captured").read_text()))
    return merged


def test_a_run_outlives_its_code_server_and_is_acked_by_the_next(shop: DagsterStack) -> None:
    (run,) = shop.runs_of(_outlived(shop))
    assert run.status is S.SUCCESS, "the process that is left merged it, and its success counts"


# ── runs that drain ──


def attached(shop: DagsterStack) -> dg.DagsterRun:
    """Waits until a new change is acked. Then returns the run that drains and holds the drain lock."""

    def found() -> dg.DagsterRun | None:
        runs = shop.instance.get_runs(dg.RunsFilter(statuses=[S.STARTED], tags={RUNS_TAG: DRAIN}))
        return runs[0] if runs and destination_files.drain_lock_held(shop.directory) else None

    shop.wait_until_acked(shop.capture(1))
    return wait_for("a run is attached", found)


def test_a_run_that_drains_merges_and_settles_batch_after_batch(shop: DagsterStack) -> None:
    shop.write_runs("drain")
    shop.kill_code_server()
    shop.code_server = shop.start_code_server()
    run = attached(shop)
    before = len(shop.instance.get_runs())
    for _ in range(4):
        shop.wait_until_acked(shop.capture(3))
    assert len(shop.instance.get_runs()) == before, "no run was made for them"

    def reported() -> list[tuple[str, object]]:
        found = shop.instance.fetch_materializations(dg.AssetKey(["shop", "orders"]), limit=4).records
        made = [(each.run_id, each.asset_materialization) for each in found]
        return [(run_id, each.metadata["rows_inserted"].value) for run_id, each in made if each]

    # The run acks a batch before it reports the tables of the batch.
    wait_for("the last four batches are reported", lambda: reported() == [(run.run_id, 3)] * 4)


@pytest.mark.parametrize("gate", ["before", "after"])
def test_a_killed_run_that_drains_is_rolled_back_and_its_changes_come_again(shop: DagsterStack, gate: str) -> None:
    attached(shop)
    _kill_a_run(shop, gate)


def test_a_terminated_run_that_drains_is_rolled_back(shop: DagsterStack) -> None:
    attached(shop)
    shop.shut("before")
    shop.capture(4)
    shop.reached("before")
    ended = delivery(shop)
    (run,) = shop.runs_of(ended)
    assert shop.instance.run_coordinator.cancel_run(run.run_id)
    assert shop.wait_until_ended(run.run_id).status is S.CANCELED
    shop.open("before")
    wait_for("the batch has another delivery", lambda: (head := shop.head()) is None or head.delivery > ended)


def test_a_run_that_drains_outlives_its_code_server(shop: DagsterStack) -> None:
    attached(shop)
    merged = _outlived(shop)
    assert shop.lake()[-1]["batch"].endswith(f"-{merged}"), "it was merged once, under its own delivery"


def test_a_run_whose_code_server_died_between_two_batches_continues_or_makes_way(shop: DagsterStack) -> None:
    attached(shop)
    shop.kill_code_server()
    shop.code_server = shop.start_code_server()
    shop.wait_until_acked(shop.capture(2))


def test_a_code_server_that_is_requested_to_end_ends_its_run(shop: DagsterStack) -> None:
    run = attached(shop)
    shop.request_code_server_end()
    wait_for("the code server has ended", lambda: not shop.code_server.running)
    assert shop.wait_until_ended(run.run_id).status is S.SUCCESS
    shop.code_server = shop.start_code_server()


def test_code_server_and_run_killed_together_continue(shop: DagsterStack) -> None:
    """No process is left to report that the run failed. The run counts as STARTED until its run lock was seen free for a while."""
    attached(shop)
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
