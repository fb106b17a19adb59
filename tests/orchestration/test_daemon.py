"""Tests the loops of Dagster's daemon, which wake each other. The daemons and the instance are real, and their iterations are replaced."""

from __future__ import annotations

import asyncio
import datetime as dt
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from dagster._core.loader import LoadingContextForTest
from dagster._core.remote_representation.grpc_server_state_subscriber import (
    LocationStateChangeEvent,
    LocationStateChangeEventType,
)
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import EmptyWorkspaceTarget
from dagster._daemon import controller
from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import QueuedRunCoordinatorDaemon
from dagster._grpc.client import DagsterGrpcClient
from dagster_shared.error import SerializableErrorInfo

from sluice.cdc_engine import durable_files
from sluice.orchestration import daemon, server_ids
from sluice.orchestration.daemon import PoliciesOnly, Wake, WokenRunQueue, WokenSensors, wake_each_other

LONG_SECONDS = 600.0  # An interval that no test waits for.
LIMIT_SECONDS = 20.0
NOTHING: Any = SimpleNamespace(instance=SimpleNamespace(run_storage=None))  # A workspace without runs.


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "SENSOR_SECONDS", LONG_SECONDS)
    monkeypatch.setattr(daemon, "AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(daemon, "SHUTDOWN_LOOK_SECONDS", 0.01)


def _in_thread(loop: Iterator[Any], shutdown: threading.Event) -> Callable[[], None]:
    """Runs the loop in a thread, as Dagster's controller does. Returns a function that ends the loop and fails if the loop does not end."""

    def run() -> None:
        while not shutdown.is_set():
            next(loop)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def end() -> None:
        shutdown.set()
        thread.join(LIMIT_SECONDS)
        assert not thread.is_alive()

    return end


class Evaluated:
    """Replaces Dagster's evaluation of the sensors: begins a tick of one sensor if it has none in progress."""

    def __init__(self) -> None:
        self.ticks: list[Future[None]] = []
        self.evaluated = threading.Semaphore(0)

    def __call__(self, *_: Any, sensor_tick_futures: dict[str, Future[None]], **__: Any) -> Iterator[None]:
        if "shop" not in sensor_tick_futures or sensor_tick_futures["shop"].done():
            sensor_tick_futures["shop"] = Future()
            self.ticks.append(sensor_tick_futures["shop"])
        yield None
        self.evaluated.release()


def test_a_wake_that_precedes_the_wait_is_not_lost_and_counts_once() -> None:
    wake, shutdown = Wake(), threading.Event()
    wake.set()
    wake.set()
    assert wake.wait(LONG_SECONDS, shutdown)
    assert not wake.wait(0.02, shutdown)


def test_shutdown_ends_a_wait() -> None:
    shutdown = threading.Event()
    shutdown.set()
    begun = time.monotonic()
    assert not Wake().wait(LONG_SECONDS, shutdown)
    assert time.monotonic() - begun < LIMIT_SECONDS


def test_the_end_of_a_tick_wakes_the_queue_and_a_launch_wakes_the_sensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tick ends while its loop waits. Then the daemon inspects the queue and launches a run, and the next tick begins."""
    sensors, queue = Wake(), Wake()
    evaluate, requested, inspected = Evaluated(), list[str](), threading.Semaphore(0)
    monkeypatch.setattr(daemon, "execute_sensor_iteration", evaluate)

    def dequeue(*_: Any, **__: Any) -> Iterator[None]:
        inspected.release()
        if requested:
            requested.pop()
            yield None

    monkeypatch.setattr(QueuedRunCoordinatorDaemon, "run_iteration", dequeue)
    shutdown = threading.Event()
    ends = [
        _in_thread(WokenRunQueue(LONG_SECONDS, queue, sensors).core_loop(NOTHING, shutdown), shutdown),
        _in_thread(WokenSensors({"use_threads": True}, sensors, queue).core_loop(NOTHING, shutdown), shutdown),
    ]
    try:
        for _ in range(3):  # Each iteration needs the one before it, because nothing else begins a tick.
            assert evaluate.evaluated.acquire(timeout=LIMIT_SECONDS)
            assert inspected.acquire(timeout=LIMIT_SECONDS)
            requested.append("run")
            evaluate.ticks[-1].set_result(None)
        assert evaluate.evaluated.acquire(timeout=LIMIT_SECONDS)
        assert len(evaluate.ticks) == 4
    finally:
        for end in ends:
            end()


def test_the_end_of_a_long_tick_begins_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a short tick, the loop begins the next one at its interval."""
    evaluate, sensors = Evaluated(), Wake()
    monkeypatch.setattr(daemon, "execute_sensor_iteration", evaluate)
    loop = WokenSensors({"use_threads": True}, sensors, Wake())
    list(loop._evaluate(NOTHING))
    evaluate.ticks[-1].set_result(None)
    assert not sensors.wait(0.0, threading.Event())
    list(loop._evaluate(NOTHING))
    monkeypatch.setattr(daemon, "SENSOR_SECONDS", -1.0)
    evaluate.ticks[-1].set_result(None)
    assert sensors.wait(0.0, threading.Event())


def test_a_code_server_that_answers_again_wakes_the_sensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine may have staged a batch while its code server did not answer. Without the wake, the batch would wait for the sensor's
    interval. A loop that has ended is not woken.
    """
    evaluate, sensors, shutdown = Evaluated(), Wake(), threading.Event()
    monkeypatch.setattr(daemon, "execute_sensor_iteration", evaluate)
    answers = LocationStateChangeEvent(LocationStateChangeEventType.LOCATION_RECONNECTED, "sluice", "it answers")
    with (
        dg.instance_for_test() as instance,
        WorkspaceProcessContext(instance, EmptyWorkspaceTarget()) as workspace,
    ):
        loop = WokenSensors({"use_threads": True}, sensors, Wake()).core_loop(workspace, shutdown)
        end = _in_thread(loop, shutdown)
        try:
            for _ in range(2):
                assert evaluate.evaluated.acquire(timeout=LIMIT_SECONDS)
                workspace._send_state_event_to_subscribers(answers)
            assert evaluate.evaluated.acquire(timeout=LIMIT_SECONDS)
        finally:
            end()
        loop.close()
        sensors.wait(0.0, threading.Event())
        workspace._send_state_event_to_subscribers(answers)
        assert not sensors.wait(0.0, threading.Event())


def test_the_queue_is_inspected_after_a_run_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = {"module": "sluice.orchestration.storage", "class": "KeptSqlite", "config": {"base_dir": str(tmp_path)}}
    monkeypatch.setattr(durable_files, "RECENT_NS", 0)
    inspected, clock = list[int](), [100.0]
    monkeypatch.setattr(daemon, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def inspect(*_: Any, **__: Any) -> Iterator[None]:
        inspected.append(1)
        yield from ()

    monkeypatch.setattr(QueuedRunCoordinatorDaemon, "run_iteration", inspect)
    with dg.instance_for_test(overrides={"storage": {"custom": storage}}, temp_dir=str(tmp_path)) as instance:
        workspace: Any = SimpleNamespace(instance=instance)
        instance.get_run_records(limit=1)
        steps = WokenRunQueue(0.0, Wake(), Wake()).core_loop(workspace, threading.Event())
        for _ in range(20):
            next(steps)
        assert len(inspected) == 1, "no run has changed"
        instance.create_run_for_job(nothing_to_do)
        for _ in range(20):
            next(steps)
        assert len(inspected) == 2
        clock[0] += daemon.QUEUE_SECONDS
        for _ in range(20):
            next(steps)
        assert len(inspected) == 3, "its longer interval is over"


def test_the_id_of_a_code_server_is_requested_rarely_while_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, now = ["one", "two", ""], [100.0]

    def get_id(*_: Any) -> str:
        if not (answer := answers.pop(0)):
            raise OSError("no answer")
        return answer

    monkeypatch.setattr(server_ids, "_get_server_id", get_id)
    monkeypatch.setattr("sluice.orchestration.server_ids.time.monotonic", lambda: now[0])
    monkeypatch.setattr(DagsterGrpcClient, "get_server_id", DagsterGrpcClient.get_server_id)
    server_ids.remember_server_ids()
    client = DagsterGrpcClient(port=1)
    assert [client.get_server_id() for _ in range(3)] == ["one"] * 3
    now[0] += server_ids.REMEMBERED_SECONDS
    assert [client.get_server_id(timeout=2) for _ in range(3)] == ["two"] * 3
    for _ in range(2):
        now[0] += server_ids.REMEMBERED_SECONDS
        answers[:0] = [""]
        with pytest.raises(OSError, match="no answer"):
            client.get_server_id()
    assert not answers[1:], "each call asks while there is no answer"


@pytest.mark.parametrize("loaded", [True, False])
def test_a_code_location_is_loaded_again_only_while_it_is_broken(loaded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    refreshed: list[float] = []

    def refresh(_self: object, last: float) -> float:
        refreshed.append(last)
        return last

    monkeypatch.setattr(controller.DagsterDaemonController, "check_workspace_freshness", refresh)
    daemon.reload_only_broken_locations()
    entries = {"whole": SimpleNamespace(code_location=1), "other": SimpleNamespace(code_location=1 if loaded else None)}
    request = SimpleNamespace(get_code_location_entries=lambda: entries)
    workspace = SimpleNamespace(create_request_context=lambda: request)
    of_daemon: Any = SimpleNamespace(_workspace_process_context=workspace)
    last = controller.DagsterDaemonController.check_workspace_freshness(of_daemon, 5.0)
    assert refreshed == ([] if loaded else [5.0])
    assert last == 5.0 or loaded


@dg.job
def nothing_to_do() -> None: ...


def test_an_error_of_an_iteration_is_reported_and_the_loop_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Iterator[None]:
        yield from ()
        raise OSError("disk full")

    monkeypatch.setattr(daemon, "execute_sensor_iteration", fail)
    monkeypatch.setattr(QueuedRunCoordinatorDaemon, "run_iteration", fail)
    wakes = Wake(), Wake()
    for loop in (WokenRunQueue(0.0, *wakes), WokenSensors({}, *wakes)):
        monkeypatch.setattr(daemon, "SENSOR_SECONDS", 0.0)
        steps = loop.core_loop(NOTHING, threading.Event())
        reported = [next(steps) for _ in range(8)]
        assert [each.message.strip() for each in reported if isinstance(each, SerializableErrorInfo)] == [
            "OSError: disk full"
        ] * 2


def test_the_daemons_that_dagster_creates_wake_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if another version of Dagster creates its daemons differently."""
    monkeypatch.setattr(controller, "create_daemon_of_type", controller.create_daemon_of_type)
    wake_each_other()
    overrides = {"run_coordinator": {"module": "dagster._core.run_coordinator", "class": "QueuedRunCoordinator"}}
    with dg.instance_for_test(overrides=overrides) as instance:
        created = {type(each) for each in controller.create_daemons_from_instance(instance)}
    assert {WokenRunQueue, WokenSensors, PoliciesOnly} <= created
    assert len(created) > 2


@dg.asset(freshness_policy=dg.FreshnessPolicy.time_window(fail_window=dt.timedelta(minutes=5)))
def fresh() -> None: ...


@dg.asset
def plain() -> None: ...


@pytest.mark.scale
@pytest.mark.found
def test_no_freshness_is_stored_of_assets_without_a_policy() -> None:
    """Defect 27: the first start stored 6,001 freshness states for 3,000 tables, and Dagster compared all of them every half minute."""
    nodes = dg.Definitions(assets=[fresh, plain]).resolve_asset_graph().asset_nodes
    with dg.instance_for_test() as instance:
        states = [asyncio.run(_evaluate(instance, each)) for each in nodes]
        stored = instance.get_freshness_state_records([fresh.key, plain.key])
    assert {each.key: state for each, state in zip(nodes, states, strict=True)} == {fresh.key: True, plain.key: False}
    assert set(stored) == {fresh.key}


async def _evaluate(instance: dg.DagsterInstance, node: Any) -> bool:
    return await PoliciesOnly()._evaluate_asset(LoadingContextForTest(instance), node)
