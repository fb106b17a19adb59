"""Tests ticks in this process: a real sensor on a real (ephemeral) Dagster instance, with a fake engine."""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import dagster as dg
import pytest
import yaml
from dagster import DagsterRunStatus as S

from sluice.cdc_engine.contracts import OutstandingBatch, StoppedTable
from sluice.cdc_engine.errors import ConfigurationError, StagingError
from sluice.cdc_engine.limits import SENSOR_WORKERS, TICK_SECONDS_MAX
from sluice.cdc_engine.states import TableState
from sluice.orchestration.base.batch_reference import BatchReference, delivery_of
from sluice.orchestration.base.ports import EngineHost
from sluice.orchestration.base.testing import LEDGER_ID, FakePorts, FakeState, position
from sluice.orchestration.code_location import build_definitions
from sluice.orchestration.sensor import silence
from sluice.orchestration.sensor.runs import RunStore
from sluice.orchestration.sensor.settle import RunRecord
from sluice.orchestration.sensor.tick import LOOK_SECONDS, DestinationSensor, Ticker, tick_seconds
from tests.orchestration.fix_location import make_config, make_fake_ports, write_tables
from tests.orchestration.rpc.fix_host import connected

JOB = "merge_shop_job"
TICK_SECONDS = 1.0  # How long a tick with nothing to do waits.


class Shop:
    """Provides the sensor of one destination, and a fake engine. `tick` runs a tick, as the daemon does."""

    def __init__(
        self,
        root: Path,
        instance: dg.DagsterInstance,
        *,
        tables: bool = True,
        runs: Literal["batch", "drain"] = "batch",
        host: Callable[[FakePorts], EngineHost] = lambda fakes: fakes.host,
    ) -> None:
        self.config = make_config(root, runs=runs)
        if tables:
            write_tables(self.config.destination_dir("shop"))
        self.fakes: FakePorts = make_fake_ports(self.config)
        self.engine = self.fakes.engine
        self.instance = instance
        engines = host(self.fakes)
        self.defs = build_definitions(self.config, dataclasses.replace(self.fakes.ports(), host=lambda: engines))
        self.sensor = self.defs.resolve_sensor_def("shop_engine")
        self.cursor: str | None = None

    def preview(self) -> Any:
        """Does what "test sensor" in the UI does: it calls the same function as the daemon, and discards the result."""
        context = dg.build_sensor_context(
            instance=self.instance, cursor=self.cursor, repository_def=self.defs.get_repository_def()
        )
        with context:
            return self.sensor.evaluate_tick(context)

    def tick(self) -> Any:
        answer = self.preview()
        self.cursor = answer.cursor
        return answer

    def request(self) -> dg.RunRequest:
        requests = self.tick().run_requests
        assert len(requests) == 1
        found: dg.RunRequest = requests[0]
        return found

    def run(self, request: dg.RunRequest, status: S) -> dg.DagsterRun:
        """Adds a run of a request with a status, as the daemon and the launcher would record it."""
        job = self.defs.resolve_job_def(JOB)
        return self.instance.create_run_for_job(
            job,
            tags={**request.tags, "dagster/run_key": request.run_key or ""},
            run_config=request.run_config,
            status=status,
        )

    def succeed(self, run: dg.DagsterRun) -> None:
        success = dg.DagsterEvent(dg.DagsterEventType.RUN_SUCCESS.value, job_name=run.job_name)
        self.instance.report_dagster_event(success, run.run_id)

    def head(self) -> OutstandingBatch:
        assert self.engine.head is not None
        return self.engine.head


def _look_at(clock: list[float]) -> float:
    """Advances a clock a little each time it is read, so that a tick that waits ends. The test sets the clock."""
    clock[0] += 0.05
    return clock[0]


@pytest.fixture(params=["embedded", "remote"])
def shop(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """Provides an engine in this process, and an engine that is called over gRPC. Ticks must do the same with both."""
    monkeypatch.setattr("sluice.orchestration.sensor.tick.TICK_SECONDS_MAX", TICK_SECONDS)
    monkeypatch.setattr("sluice.orchestration.sensor.tick.LOOK_SECONDS", LOOK_SECONDS / 4)
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        if request.param == "embedded":
            yield Shop(tmp_path, instance)
            return
        with contextlib.ExitStack() as calls:
            yield Shop(tmp_path, instance, host=lambda fakes: calls.enter_context(connected(fakes.host, tmp_path)))


def test_a_batch_becomes_a_run_of_just_its_tables(shop: Shop) -> None:
    shop.engine.capture(5)
    request = shop.request()
    assert request.run_key == f"shop:{LEDGER_ID}:1:{position(9).order_key}:1"
    assert {key.path[-1] for key in request.asset_selection or []} == {"orders", "items"}
    assert request.tags["sluice/destination"] == "shop"
    assert delivery_of(request.tags) == "1"
    assert request.run_config == {"ops": {"merge_shop": {"config": BatchReference.of("shop", shop.head()).to_config()}}}


def test_only_success_acks(shop: Shop) -> None:
    shop.engine.capture(5)
    shop.run(shop.request(), S.SUCCESS)
    assert shop.tick().skip_message.startswith("nothing waits; RUNNING at ")
    assert shop.engine.acked == [1]
    assert shop.engine.rolled_back == []


@pytest.mark.parametrize("status", [S.FAILURE, S.CANCELED])
def test_a_run_that_did_not_succeed_is_rolled_back_and_comes_under_a_new_key(shop: Shop, status: S) -> None:
    shop.engine.capture(5)
    first = shop.request()
    shop.run(first, status)
    second = shop.request()
    assert (shop.engine.acked, shop.engine.rolled_back) == ([], [1])
    assert second.run_key != first.run_key, "Dagster would pass over a key that it has seen fail"
    assert second.run_config["ops"]["merge_shop"]["config"]["batch"] == 1


@pytest.mark.parametrize("status", [S.STARTING, S.STARTED, S.CANCELING])
def test_a_run_at_work_is_waited_for(shop: Shop, status: S) -> None:
    shop.engine.capture(5)
    shop.run(shop.request(), status)
    shop.engine.capture(5)
    answer = shop.tick()
    assert not answer.run_requests
    assert status.value in answer.skip_message
    assert "1.5 s behind" in answer.skip_message
    assert shop.head().delivery == 1


def test_after_an_ack_the_next_batch_is_handed_out_in_the_same_tick(shop: Shop) -> None:
    shop.engine.capture(15)
    shop.run(shop.request(), S.SUCCESS)
    assert shop.request().run_key == f"shop:{LEDGER_ID}:2:{position(19).order_key}:2"
    assert shop.engine.acked == [1]


def test_testing_the_sensor_in_the_ui_changes_nothing(shop: Shop) -> None:
    shop.engine.capture(5)
    previewed = [shop.preview().run_requests[0].run_key for _ in range(3)]
    assert previewed == [shop.request().run_key] * 3
    assert shop.engine.next_delivery == 2


def test_a_lost_answer_is_given_again(shop: Shop) -> None:
    shop.engine.capture(5)
    lost = shop.request()
    assert shop.request() == lost
    shop.run(lost, S.NOT_STARTED)  # The daemon died between the creation of the run and its submission.
    assert shop.request() == lost


def test_tags_on_a_run_of_another_job_ack_nothing(shop: Shop) -> None:
    @dg.op
    def nothing() -> None: ...

    @dg.job
    def other() -> None:
        nothing()

    shop.engine.capture(5)
    request = shop.request()
    other.execute_in_process(instance=shop.instance, tags=dict(request.tags))
    assert shop.request() == request
    assert shop.engine.acked == []


def test_a_run_that_ends_during_the_tick_is_settled_by_it(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.engine.capture(15)
    run = shop.run(shop.request(), S.STARTED)
    looks = []

    def of_batch(store: RunStore, reference: BatchReference) -> list[RunRecord]:
        if reference.delivery == 2:
            return []
        looks.append(reference.delivery)
        if len(looks) == 3:
            shop.succeed(run)
        return [RunRecord(run_id=run.run_id, status=S.STARTED if len(looks) < 3 else S.SUCCESS)]

    monkeypatch.setattr(RunStore, "of_batch", of_batch)
    assert delivery_of(shop.request().tags) == "2"
    assert looks == [1, 1, 1]
    assert shop.engine.acked == [1]


def test_a_success_of_an_earlier_delivery_acks_nothing(shop: Shop) -> None:
    shop.engine.capture(5)
    first = shop.request()
    shop.run(first, S.FAILURE)
    second = shop.request()
    shop.run(first, S.SUCCESS)  # A run that was given up reports late, or was executed again by hand.
    assert shop.request() == second
    assert shop.engine.acked == []


def test_a_reexecution_that_is_still_at_work_is_waited_for(shop: Shop) -> None:
    shop.engine.capture(5)
    request = shop.request()
    shop.run(request, S.FAILURE)
    again = shop.run(request, S.STARTED)
    assert not shop.tick().run_requests
    assert shop.engine.rolled_back == []
    shop.instance.report_run_failed(again)
    assert shop.request().run_key != request.run_key


def test_a_started_run_whose_process_is_gone_is_ended_and_rolled_back(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr("sluice.orchestration.sensor.tick.time.monotonic", lambda: _look_at(clock))
    shop.engine.capture(5)
    run = shop.run(shop.request(), S.STARTED)
    shop.fakes.files.held_by = 77
    for clock[0] in (2000.0, 3000.0, 4000.0):
        assert not shop.tick().run_requests, "the lock is held: the run is at work"
    shop.fakes.files.held_by = None
    for clock[0] in (5000.0, 5020.0):
        assert not shop.tick().run_requests
    clock[0] = 5031.0
    assert delivery_of(shop.request().tags) == "2"
    ended = shop.instance.get_run_by_id(run.run_id)
    assert ended is not None
    assert ended.status is S.FAILURE
    assert shop.engine.rolled_back == [1]


def test_a_lost_run_of_an_old_delivery_is_ended_too(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr("sluice.orchestration.sensor.tick.time.monotonic", lambda: _look_at(clock))
    shop.engine.capture(5)
    old = shop.request()
    shop.run(old, S.FAILURE)
    assert shop.request() != old
    orphan = shop.run(old, S.STARTED)
    for clock[0] in (1000.0, 1031.0):
        shop.tick()
    found = shop.instance.get_run_by_id(orphan.run_id)
    assert found is not None
    assert found.status is S.FAILURE, "it would keep its place in the queue for ever"
    assert shop.head().delivery == 2


def test_a_lease_held_elsewhere_is_standby_and_names_the_holder(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "_heard", {})
    shop.fakes.host.holder = 4242
    shop.engine.capture(5)
    answer = shop.tick()
    assert silence.heard("shop"), "a tick, all the same"
    assert answer.skip_message.startswith("STANDBY: process 4242 runs the engine of shop")
    assert not answer.run_requests
    assert not answer.asset_events


def test_a_recycled_code_server_says_so(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["dagster", "api", "grpc", "--heartbeat"])
    shop.fakes.host.holder = 4242
    assert "dagster api grpc" in shop.tick().skip_message


def test_an_engine_that_cannot_start_is_a_sentence_and_a_failed_check(shop: Shop) -> None:
    shop.fakes.host.error = ConfigurationError("conf/destinations/shop.yaml: source: user is missing")
    answer = shop.tick()
    assert answer.skip_message == "CONFIGURATION: conf/destinations/shop.yaml: source: user is missing"
    failed = [event for event in answer.asset_events if isinstance(event, dg.AssetCheckEvaluation)]
    assert [(event.check_name, event.passed) for event in failed] == [("running", False)]
    assert not shop.tick().asset_events, "the same failure is not published every five seconds"
    shop.fakes.host.error = None
    published = [e for e in shop.tick().asset_events if isinstance(e, dg.AssetCheckEvaluation)]
    assert [(e.check_name, e.passed) for e in published] == [("running", True)]


def test_an_engine_that_goes_away_in_the_end_of_a_tick_takes_no_request_along(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> None:
        raise StagingError("the engine host does not answer")

    monkeypatch.setattr(shop.engine, "report_tick", away)
    shop.engine.capture(3)
    assert shop.tick().run_requests


def test_a_staging_that_fails_is_a_sentence_and_loses_nothing(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(timeout_seconds: float, *, appendable: bool) -> None:
        raise StagingError("no space left in staging/; free some and it goes on")

    shop.engine.capture(5)
    with monkeypatch.context() as patched:
        patched.setattr(shop.engine, "hand_out", full)
        answer = shop.tick()
        assert answer.skip_message.startswith("STAGING: no space left")
        failed = [e for e in answer.asset_events if isinstance(e, dg.AssetCheckEvaluation) and not e.passed]
        assert [(event.check_name, event.metadata["state"].value) for event in failed] == [("running", "STAGING")]
    assert shop.request().run_key


def test_a_batch_of_unknown_tables_only_still_gets_its_run(shop: Shop) -> None:
    shop.engine.tables = ("shop.created_since",)
    shop.engine.capture(5)
    assert shop.request().asset_selection is None


def test_fault_a_tick_that_breaks_is_no_sign_of_life(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """If Dagster's storage does not answer, a tick settles nothing. Such a tick must not count, so that `status` reports missing ticks."""
    shop.tick()
    assert shop.engine.ticks == 1

    def locked(*_: object) -> None:
        raise sqlite3.OperationalError("database is locked")

    monkeypatch.setattr(RunStore, "open_runs", locked)
    with pytest.raises(sqlite3.OperationalError):
        shop.tick()
    assert shop.engine.ticks == 1


@pytest.mark.found
def test_the_reason_why_a_tick_failed_is_reported_to_the_engine(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect 29: if ticks failed, the status said that Dagster's daemon does not run."""

    def away(*_: object) -> None:
        raise OSError("no answer from postgresql://dagster:hidden@db/dagster\nmore of it")

    monkeypatch.setattr(RunStore, "open_runs", away)
    with pytest.raises(OSError, match="no answer"):
        shop.tick()
    assert (shop.engine.ticks, shop.engine.tick_failed) == (0, "OSError: no answer from <url>")


@pytest.mark.found
def test_ticks_that_break_are_tried_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect 30: a tick that raises was repeated every five seconds as long as it failed."""
    tried, now = list[float](), [1000.0]

    def broken(*_: object) -> dg.SensorResult:
        tried.append(now[0])
        if now[0] < 1100:
            raise OSError("storage is away")
        return dg.SensorResult(skip_reason="well")

    line = DestinationSensor(
        destination="shop", op_name="merge_shop", tables=(), run_lock_held=lambda _: False, tick_seconds=TICK_SECONDS
    )
    ticker, nobody = Ticker(line, lambda: cast("EngineHost", None)), cast("RunStore", None)
    monkeypatch.setattr(ticker, "_tick", broken)
    monkeypatch.setattr("sluice.orchestration.sensor.tick.time.monotonic", lambda: now[0])
    reported = list[str]()
    for _ in range(40):
        with contextlib.suppress(OSError):
            reported.append(str(ticker.tick(nobody, None).skip_reason))
        now[0] += 5.0
    assert [each - 1000.0 for each in tried][:5] == [0.0, 5.0, 15.0, 35.0, 75.0]
    assert "ticks in a row failed, the newest with OSError; the next attempt begins in" in reported[0]
    assert "well" in reported[-1], "one that does not break ends the pauses"


def test_before_any_table_is_known_there_is_a_job_all_the_same(tmp_path: Path) -> None:
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        shop = Shop(tmp_path, instance, tables=False)
        shop.engine.capture(5)
        request = shop.request()
        assert request.asset_selection is None
        assert (
            shop.defs.resolve_job_def(JOB).execute_in_process(instance=instance, run_config=request.run_config).success
        )


def test_the_hand_out_stays_within_the_budget_of_a_tick(shop: Shop) -> None:
    # Ticks several times, because a tick on a busy machine needs some of its time before the hand-out.
    assert any(shop.tick() and 0.5 * TICK_SECONDS < shop.engine.longest_wait_seconds < TICK_SECONDS for _ in range(5))


def test_a_run_that_ends_while_a_tick_waits_for_it_is_settled_by_that_tick(shop: Shop) -> None:
    shop.engine.capture(5)
    first = shop.request()
    run = shop.run(first, S.STARTED)
    threading.Timer(LOOK_SECONDS, shop.instance.report_run_canceled, [run]).start()
    assert shop.request().run_key != first.run_key
    assert shop.engine.rolled_back == [1]


def test_an_engine_that_is_being_started_is_waited_for(shop: Shop) -> None:
    shop.engine.capture(5)
    shop.fakes.host.starting = 2
    assert shop.request().run_key


def test_an_engine_whose_start_takes_long_is_left_to_the_next_tick(shop: Shop) -> None:
    shop.fakes.host.starting = 1_000_000
    assert shop.tick().skip_message.startswith("STARTING: ")


@pytest.mark.parametrize("destinations", range(40))
def test_ticks_of_many_destinations_do_not_wait_for_each_other(destinations: int) -> None:
    assert tick_seconds(destinations) * destinations <= TICK_SECONDS_MAX * SENSOR_WORKERS
    assert tick_seconds(destinations) == TICK_SECONDS_MAX or destinations > SENSOR_WORKERS
    assert tick_seconds(destinations) > 0


def test_the_instance_has_the_workers_that_ticks_count_on() -> None:
    settings = yaml.safe_load((Path(__file__).parents[3] / "conf" / "dagster.yaml").read_text())
    assert settings["sensors"] == {"use_threads": True, "num_workers": SENSOR_WORKERS}


def test_a_tick_during_a_slow_one_does_nothing(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def slow(timeout_seconds: float, *, appendable: bool) -> None:
        inside.set()
        assert go_on.wait(30)

    with monkeypatch.context() as patched:
        patched.setattr(shop.engine, "hand_out", slow)
        first = threading.Thread(target=shop.preview)
        first.start()
        assert inside.wait(30)
        assert "an earlier tick is still running" in shop.tick().skip_message
        go_on.set()
        first.join(30)
    shop.engine.capture(1)
    assert shop.request()


def test_observations_are_a_minute_apart_and_have_the_same_numbers(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    start = 1_700_000_000.0
    clock = [start]
    clocks = SimpleNamespace(time=lambda: clock[0], monotonic=time.monotonic)  # Only the tick uses these clocks.
    monkeypatch.setattr("sluice.orchestration.sensor.tick.time", clocks)
    shop.engine.state = FakeState(position=position(9), cursor=position(4))
    found = []
    for clock[0] in (start, start + 5, start + 59, start + 61, start + 70):
        found.append([event for event in shop.tick().asset_events if isinstance(event, dg.AssetObservation)])
        shop.engine.state = FakeState(lag_seconds=0, rows_per_second=0, ring_bytes_max=0)
    assert [len(events) for events in found] == [1, 0, 0, 1, 0]
    shapes = [{name: type(value) for name, value in events[0].metadata.items()} for events in found if events]
    assert shapes[0] == shapes[1]
    assert found[0][0].asset_key == dg.AssetKey(["shop", "engine"])
    assert found[0][0].metadata["ring_fill_ratio"].value == 0.5


@pytest.mark.parametrize("hours", [None, 0.0, 7.5], ids=str)
def test_failover_the_asset_shows_the_retention_left_where_it_is_known(shop: Shop, hours: float | None) -> None:
    shop.engine.state = FakeState(retention_left_hours=hours, oldest_binlog_hours=30.0)
    (reported,) = [event for event in shop.tick().asset_events if isinstance(event, dg.AssetObservation)]
    shown = {name: value.value for name, value in reported.metadata.items() if name.endswith("_hours")}
    assert shown == {"oldest_binlog_hours": 30.0, **({} if hours is None else {"retention_left_hours": hours})}


def test_a_stopped_table_fails_its_check_once_and_recovers(shop: Shop) -> None:
    shop.tick()

    def checks() -> list[tuple[str, str, bool | None]]:
        events = [event for event in shop.tick().asset_events if isinstance(event, dg.AssetCheckEvaluation)]
        return sorted((event.asset_key.path[-1], event.check_name, event.passed) for event in events)

    stopped = StoppedTable(
        database="shop", table="orders", state=TableState.DDL_UNSUPPORTED, reason="DROP COLUMN", position=position(9)
    )
    shop.engine.state = FakeState(stopped_tables=(stopped,))
    assert checks() == [("engine", "tables_flowing", False), ("orders", "flowing", False)]
    assert checks() == []
    shop.engine.state = FakeState()
    assert checks() == [("engine", "tables_flowing", True), ("orders", "flowing", True)]


def test_a_cursor_edited_by_hand_costs_a_repeated_observation_and_nothing_else(shop: Shop) -> None:
    shop.engine.capture(5)
    for shop.cursor in ("garbage", "[1]", '{"observed_at_seconds": "x"}', '{"failing": 7}'):
        assert shop.request().run_key == f"shop:{LEDGER_ID}:1:{position(9).order_key}:1"
