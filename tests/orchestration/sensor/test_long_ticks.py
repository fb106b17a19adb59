"""Tests how long a tick that finds nothing to do looks again, and what ends it earlier."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import dagster as dg
import pytest

from sluice.cdc_engine.limits import IDLE_TICK_SECONDS_MAX, SENSOR_WORKERS, TICK_SECONDS_MAX
from sluice.orchestration.base.ports import EngineHost
from sluice.orchestration.sensor.runs import RunStore
from sluice.orchestration.sensor.tick import DestinationSensor, Ticker, idle_seconds, tick_seconds


class Looks:
    """A ticker whose looks return the given results. By its simulated clock, each look takes the whole time that a tick has for it."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, answers: list[dg.SensorResult], tick_seconds: float = TICK_SECONDS_MAX
    ) -> None:
        line = DestinationSensor(
            destination="shop",
            op_name="merge_shop",
            tables=(),
            run_lock_held=lambda _: False,
            tick_seconds=tick_seconds,
        )
        self.ticker, self.cursors, self.stays, self._now = Ticker(line, lambda: NO_HOST), list[str | None](), True, 0.0
        self._answers = answers
        monkeypatch.setattr(self.ticker, "_tick", self._look)
        monkeypatch.setattr("sluice.orchestration.sensor.tick.time.monotonic", lambda: self._now)
        monkeypatch.setattr("sluice.orchestration.sensor.tick.definitions_stay", lambda: lambda: self.stays)

    def tick(self, idle_seconds: float = IDLE_TICK_SECONDS_MAX) -> dg.SensorResult:
        return self.ticker.tick(cast("RunStore", None), "before", idle_seconds)

    def _look(self, _: RunStore, cursor: str | None, deadline: float) -> dg.SensorResult:
        self.cursors.append(cursor)
        self._now = deadline
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


NO_HOST = cast("EngineHost", None)
IDLE = dg.SensorResult(skip_reason="nothing waits; RUNNING", cursor="after")


def test_a_tick_that_finds_nothing_looks_again_and_ends_before_the_daemon_begins_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = Looks(monkeypatch, [IDLE])
    assert looks.tick() is IDLE
    assert looks.cursors == ["before", *["after"] * 4]
    assert pytest.approx(TICK_SECONDS_MAX) == IDLE_TICK_SECONDS_MAX % 5.0, "Dagster begins a tick every 5 s"


def test_a_tick_without_time_to_look_again_ends_although_the_clock_stands_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = Looks(monkeypatch, [IDLE], tick_seconds=0.0)
    assert looks.tick(0.0) is IDLE
    assert looks.cursors == ["before"]


@pytest.mark.scale
@pytest.mark.found
def test_a_tick_of_one_of_a_hundred_destinations_waits_as_long_at_each_look_as_that_of_an_only_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Defect 38: with a worker for each of many sensors, a tick looked again without a pause, and used a whole core."""
    looks = Looks(monkeypatch, [IDLE], tick_seconds=tick_seconds(100))
    assert looks.tick() is IDLE
    assert len(looks.cursors) == 5


@pytest.mark.parametrize(
    "found",
    [
        dg.SensorResult(run_requests=[dg.RunRequest(run_key="1")]),
        dg.SensorResult(skip_reason="nothing waits", asset_events=[dg.AssetObservation("engine")]),
        dg.SensorResult(skip_reason="run 1 is STARTED"),
        dg.SensorResult(skip_reason="STANDBY: another host has the lease"),
    ],
)
def test_a_tick_returns_at_once_what_dagster_must_know(monkeypatch: pytest.MonkeyPatch, found: dg.SensorResult) -> None:
    looks = Looks(monkeypatch, [IDLE, found])
    assert looks.tick() is found
    assert len(looks.cursors) == 2


def test_a_tick_looks_once_if_its_definitions_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(monkeypatch, [IDLE])
    looks.stays = False
    looks.tick()
    assert len(looks.cursors) == 1


def test_a_long_tick_returns_if_another_one_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a restart of the daemon, another tick comes while the first one runs. Nobody waits for the answer of the first tick."""
    looks, reported = Looks(monkeypatch, [IDLE]), list[str]()
    look = looks.ticker._tick

    def during_a_tick(*given: Any) -> dg.SensorResult:
        reported.append(str(looks.tick().skip_reason))
        return look(*given)

    monkeypatch.setattr(looks.ticker, "_tick", during_a_tick)
    looks.tick()
    assert len(looks.cursors) == len(reported) == 1
    assert "an earlier tick is still running" in reported[0]
    monkeypatch.setattr(looks.ticker, "_tick", look)
    looks.tick()
    assert len(looks.cursors) > 2, "the next one is long again"


@pytest.mark.parametrize(
    ("sensors", "destinations", "long"),
    [
        ({"use_threads": True, "num_workers": SENSOR_WORKERS}, 1, True),
        ({"use_threads": True, "num_workers": SENSOR_WORKERS}, SENSOR_WORKERS // 2, True),
        ({"use_threads": True, "num_workers": SENSOR_WORKERS}, SENSOR_WORKERS // 2 + 1, False),
        ({"use_threads": True, "num_workers": 1}, 1, False),
        ({"use_threads": False}, 1, False),
    ],
)
def test_long_ticks_leave_a_worker_to_each_sensor(
    tmp_path: Path, sensors: dict[str, Any], destinations: int, *, long: bool
) -> None:
    with dg.instance_for_test(overrides={"sensors": sensors}, temp_dir=str(tmp_path)) as instance:
        assert bool(idle_seconds(destinations, instance)) is long
