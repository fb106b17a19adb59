"""Tests how long a tick of the sensor of snapshots looks again while no snapshot is in progress."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import dagster as dg
import pytest
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteRepositoryOrigin

from sluice.cdc_engine.limits import IDLE_TICK_SECONDS_MAX
from sluice.cdc_engine.meta.ledger import Ledger
from sluice.cdc_engine.snapshot.record import wanted
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.orchestration.base.batch_reference import LEDGER_TAG
from sluice.orchestration.code_location import build_definitions
from sluice.orchestration.sensor import snapshot_sensor
from tests.fix_ledgers import FileLedger, at
from tests.orchestration.fix_location import make_config, make_fake_ports, write_tables


class Sensor:
    """Evaluates the snapshot sensor of a destination, with a clock that its pauses advance. `stays` is True while its definitions are in
    use.
    """

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        config = make_config(root)
        write_tables(config.destination_dir("shop"))
        self.directory = config.destination_dir("shop")
        self.records, self.now, self.looks, self.stays = SnapshotRecords(self.directory), 0.0, 0, True
        self.request_at = float("inf")
        self._defs = build_definitions(config, make_fake_ports(config).ports())
        monkeypatch.setattr(snapshot_sensor, "definitions_stay", lambda: lambda: self.stays)
        monkeypatch.setattr(snapshot_sensor, "idle_seconds", lambda *_: IDLE_TICK_SECONDS_MAX)
        monkeypatch.setattr(snapshot_sensor, "silence", self._look)
        clock = SimpleNamespace(monotonic=lambda: self.now, time=lambda: 1e9, sleep=self._sleep)
        monkeypatch.setattr(snapshot_sensor, "time", clock)

    def tick(self) -> str:
        """Returns why the tick requested no run."""
        with dg.DagsterInstance.ephemeral() as instance:
            return self.tick_of(instance)

    def tick_of(self, instance: dg.DagsterInstance, location: RemoteRepositoryOrigin | None = None) -> str:
        """Runs a tick of a code location, and returns why it requested no run."""
        context = dg.SensorEvaluationContext(
            instance_ref=None,
            instance=instance,
            repository_name=location.repository_name if location is not None else None,
            repository_def=self._defs.get_repository_def(),
            code_location_origin=location.code_location_origin if location is not None else None,
        )
        with context:
            return self._defs.resolve_sensor_def("shop_snapshots").evaluate_tick(context).skip_message or ""

    def run(
        self,
        instance: dg.DagsterInstance,
        status: dg.DagsterRunStatus,
        location: RemoteRepositoryOrigin | None = None,
        ledger: str = "",
    ) -> dg.DagsterRun:
        job = self._defs.resolve_job_def("snapshot_shop_job")
        origin = location.get_job_origin(job.name) if location is not None else None
        return instance.create_run_for_job(job, status=status, remote_job_origin=origin, tags={LEDGER_TAG: ledger})

    def start_by_hand(self, instance: dg.DagsterInstance) -> dg.DagsterRun:
        """Executes a run that the sensor did not request, while another run reads, and returns it."""
        reading = self.records.take_reading()
        assert reading is not None
        try:
            result = self._defs.resolve_job_def("snapshot_shop_job").execute_in_process(instance=instance)
        finally:
            reading.release()
        run = instance.get_run_by_id(result.run_id)
        assert run is not None
        return run

    def _look(self, *_: object) -> tuple[list[dg.AssetCheckEvaluation], str]:
        self.looks += 1
        return [], ""

    def _sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now >= self.request_at:
            self.records.begin(wanted("shop.orders", at(10), now=1.0))
            self.request_at = float("inf")


@pytest.fixture
def sensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sensor:
    return Sensor(tmp_path, monkeypatch)


def test_a_tick_looks_again_while_no_snapshot_is_in_progress(sensor: Sensor) -> None:
    assert sensor.tick() == snapshot_sensor.NONE_IN_PROGRESS
    assert sensor.looks == 1 + IDLE_TICK_SECONDS_MAX // snapshot_sensor.LOOK_SECONDS
    assert sensor.now <= IDLE_TICK_SECONDS_MAX


def test_a_requested_snapshot_ends_the_tick(sensor: Sensor) -> None:
    sensor.request_at = 9.0
    assert sensor.tick() != snapshot_sensor.NONE_IN_PROGRESS
    assert sensor.now < 9.0 + snapshot_sensor.LOOK_SECONDS


def test_a_tick_looks_once_if_its_definitions_do_not_stay(sensor: Sensor) -> None:
    sensor.stays = False
    sensor.tick()
    assert (sensor.looks, sensor.now) == (1, 0.0)


@pytest.mark.found
@pytest.mark.parametrize("status", [dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTING])
def test_a_run_that_never_began_is_ended_and_another_run_continues(
    sensor: Sensor, monkeypatch: pytest.MonkeyPatch, status: dg.DagsterRunStatus
) -> None:
    """Defect 1040: if Dagster created a snapshot run and could not submit it, no snapshot continued until somebody deleted the run. The
    sensor said that the run was reading the tables.
    """
    sensor.records.begin(wanted("shop.orders", at(10), now=1.0))
    with dg.DagsterInstance.ephemeral() as instance:
        run, ago = sensor.run(instance, status), 60.0
        monkeypatch.setattr("sluice.orchestration.base.open_runs.state_seconds", lambda _: ago)
        assert sensor.tick_of(instance) == "a run is reading shop.orders"
        ago = 200.0
        sensor.tick_of(instance)
        assert [each.status for each in instance.get_runs()] == [dg.DagsterRunStatus.FAILURE], run.run_id
        assert not sensor.tick_of(instance).startswith("a run is reading")


@pytest.mark.found
def test_many_runs_of_another_code_location_do_not_hide_that_a_run_is_reading(sensor: Sensor) -> None:
    """Defect 1115: the sensor looked at the newest ten runs of all code locations, and started a second run while a run was reading."""
    sensor.records.begin(wanted("shop.orders", at(10), now=1.0))
    here, there = (
        RemoteRepositoryOrigin(RegisteredCodeLocationOrigin(name), "__repository__") for name in ("sales", "crm")
    )
    with dg.DagsterInstance.ephemeral() as instance:
        sensor.run(instance, dg.DagsterRunStatus.STARTING, here)
        for _ in range(snapshot_sensor.RUNS_LOOKED_AT):
            sensor.run(instance, dg.DagsterRunStatus.FAILURE, there)
        assert sensor.tick_of(instance, here) == "a run is reading shop.orders"


@pytest.mark.found
def test_a_lost_run_is_ended_after_its_code_location_was_renamed(
    sensor: Sensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 1116: a snapshot run whose process had died stayed open for ever if the code location was renamed meanwhile, and occupied a
    place in the run queue.
    """
    sensor.records.begin(wanted("shop.orders", at(10), now=1.0))
    FileLedger(sensor.directory).update(lambda _: Ledger(ledger_id="0123456789ab"))
    before, now, there = (
        RemoteRepositoryOrigin(RegisteredCodeLocationOrigin(name), "__repository__")
        for name in ("sales", "renamed", "crm")
    )
    monkeypatch.setattr(snapshot_sensor, "LOST_SECONDS", -1.0)
    with dg.DagsterInstance.ephemeral() as instance:
        runs = [
            sensor.run(instance, dg.DagsterRunStatus.STARTED, location, ledger)
            for location, ledger in ((before, "0123456789ab"), (there, "ffffffffffff"))
        ]
        sensor.tick_of(instance, now)
        statuses = {each.run_id: each.status for each in instance.get_runs()}
        assert [statuses[run.run_id] for run in runs] == [dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.STARTED]


def test_a_run_that_a_person_started_gets_the_tag_of_its_ledger(sensor: Sensor) -> None:
    """By this tag the sensor recognizes the run after the code location was renamed."""
    FileLedger(sensor.directory).update(lambda _: Ledger(ledger_id="0123456789ab"))
    with dg.DagsterInstance.ephemeral() as instance:
        assert sensor.start_by_hand(instance).tags[LEDGER_TAG] == "0123456789ab"
