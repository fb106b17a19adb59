"""Tests that Dagster's instance is opened once for all ticks of a sensor, and never the instance of another Dagster."""

from __future__ import annotations

from pathlib import Path

import dagster as dg

from sluice.orchestration.sensor.runs import KeptInstance


def test_one_instance_serves_the_ticks_of_one_dagster(tmp_path: Path) -> None:
    kept = KeptInstance()
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    first, second = (dg.DagsterInstance.local_temp(str(folder)) for folder in folders)
    with dg.build_sensor_context(instance=first) as tick, dg.build_sensor_context(instance=first) as next_tick:
        instance = kept.of(tick)
        assert kept.of(next_tick) is instance
        assert instance.get_ref() == first.get_ref()
    assert instance.get_runs() == [], "it outlives the tick"
    with dg.build_sensor_context(instance=second) as tick:
        assert kept.of(tick).get_ref() == second.get_ref()


def test_a_tick_without_a_dagster_of_its_own_passes_its_instance() -> None:
    instance = dg.DagsterInstance.ephemeral()
    with dg.build_sensor_context(instance=instance) as tick:
        assert KeptInstance().of(tick) is instance
