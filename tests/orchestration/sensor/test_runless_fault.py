"""Tests an engine without a daemon and without ticks: the process of the engines makes the check on its asset fail in Dagster, and pass
again later.
"""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import dagster as dg
import pytest
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationPlanned

from sluice.cdc_engine.instance.status import EngineStatus, write_status
from sluice.cdc_engine.limits import TICK_SILENCE_SECONDS_MAX
from sluice.cdc_engine.status_file import STATUS_FILE
from sluice.orchestration.base.table_catalog import engine_key
from sluice.orchestration.checks.observations import ENGINE_CHECK, result_of
from sluice.orchestration.sensor import runless, silence
from sluice.orchestration.sensor.runless import CheckPublisher

KEY = dg.AssetCheckKey(engine_key("shop"), ENGINE_CHECK)
NO_TICK = "no tick of the sensor shop_engine for 120 s"


class Host:
    """The process that hosts an engine, with a Dagster storage on disk. `now` is its clock."""

    def __init__(self, folder: Path) -> None:
        (folder / "storage").mkdir()
        self.folder, self.now = folder, 1_800_000_000.0
        self.ticked = self.now
        self.start()

    def start(self) -> None:
        self.publisher = CheckPublisher("shop", self.folder, self.storage, lambda: self.now)

    def storage(self) -> dg.DagsterInstance:
        return dg.DagsterInstance.local_temp(str(self.folder / "storage"))

    def passes(self, seconds: float, *troubles: str) -> bool:
        """Advances the time, and lets the engine write its status. Returns whether the host publishes anything."""
        self.now += seconds
        status = EngineStatus(
            state="RUNNING", troubles=troubles, ticked_at_us=int(self.ticked * 1e6), updated_at_us=int(self.now * 1e6)
        )
        write_status(self.folder / STATUS_FILE, status)
        return self.publisher.look()

    def newest(self) -> tuple[bool, str]:
        with self.storage() as instance:
            record = instance.event_log_storage.get_latest_asset_check_execution_by_key([KEY])[KEY]
        assert record.evaluation is not None
        return record.evaluation.passed, record.evaluation.description or ""


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr(silence, "_heard", {})
    return Host(tmp_path)


def test_fault_the_check_fails_once_when_no_daemon_ticks_and_passes_when_one_is_back(host: Host) -> None:
    assert not host.passes(TICK_SILENCE_SECONDS_MAX - 1)
    assert host.passes(120, NO_TICK)
    assert host.newest() == (False, f"TROUBLED: {NO_TICK}")
    assert not host.passes(15, NO_TICK), "it is said already"
    host.ticked = host.now
    assert host.passes(1)
    assert host.newest() == (True, "")
    assert not host.passes(1)


def test_fault_an_engine_without_a_tick_since_its_start_is_reported_too(host: Host) -> None:
    host.ticked = 0.0
    assert not host.passes(60)
    assert host.passes(60, NO_TICK)
    host.start()
    assert not host.passes(1, NO_TICK), "a new process waits for ticks first, and takes nothing back"
    assert host.newest()[0] is False
    host.ticked = host.now
    assert host.passes(1), "what the process before it said is cleared"


def test_fault_what_a_sensor_has_said_is_not_said_again(host: Host) -> None:
    with host.storage() as instance:
        instance.report_runless_asset_event(result_of(KEY.asset_key, ENGINE_CHECK, f"TROUBLED: {NO_TICK}"))
    assert not host.passes(120, NO_TICK)


def test_fault_a_check_that_a_run_is_about_to_report_does_not_count_yet(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = SimpleNamespace(evaluation=AssetCheckEvaluationPlanned(asset_key=KEY.asset_key, check_name=KEY.name))
    with host.storage() as instance:
        monkeypatch.setattr(
            type(instance.event_log_storage), "get_latest_asset_check_execution_by_key", lambda *_, **__: {KEY: planned}
        )
    assert host.passes(120, NO_TICK)


def test_fault_a_check_is_cleared_once_the_storage_answers_again(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    assert host.passes(120, NO_TICK)
    host.ticked = host.now

    def away() -> dg.DagsterInstance:
        raise OSError("database is locked")

    monkeypatch.setattr(host.publisher, "_instance", away)
    with pytest.raises(OSError, match="locked"):
        host.passes(1)
    monkeypatch.setattr(host.publisher, "_instance", host.storage)
    assert host.passes(1)
    assert host.newest() == (True, "")


def test_fault_an_engine_that_cannot_start_is_reported_by_its_sensor_while_ticks_come(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.ticked = 0.0
    monkeypatch.setitem(silence._heard, "shop", host.now + 120)
    assert not host.passes(120, NO_TICK)


def test_fault_a_storage_that_cannot_be_written_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    stopping, looks = threading.Event(), []

    class Broken(CheckPublisher):
        def __init__(self) -> None: ...

        def look(self) -> bool:
            looks.append(1)
            if len(looks) == 2:
                stopping.set()
            raise OSError("database is locked")

    monkeypatch.setattr(runless, "LOOK_SECONDS", 0.0)
    runless.publish_checks(lambda: [Broken()], stopping)
    assert len(looks) == 2


@pytest.mark.found
def test_fault_an_error_of_one_publisher_is_logged_once_although_another_one_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Defect 96: the success of another destination's publisher made the same error count as new, every 15 s."""
    stopping, looks, logged = threading.Event(), [], []

    class One(CheckPublisher):
        def __init__(self, *, works: bool) -> None:
            self.works = works

        def look(self) -> bool:
            looks.append(1)
            if len(looks) == 6:
                stopping.set()
            if not self.works:
                raise OSError("database is locked")
            return False

    monkeypatch.setattr(runless, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(runless, "log", SimpleNamespace(warning=lambda event, **_: logged.append(event)))
    publishers = [One(works=True), One(works=False)]
    runless.publish_checks(lambda: publishers, stopping)
    assert (len(looks), logged) == (6, ["check_not_published"])
