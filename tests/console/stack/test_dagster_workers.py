"""Tests that Dagster has a worker for each sensor, and that the code server has a thread for each tick, with any number of destinations."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest
import yaml

from sluice.console.stack.dagster_workers import MORE_DESTINATIONS, OTHER_CALLS, calls_at_once, with_workers
from sluice.orchestration.sensor.tick import idle_seconds
from sluice.package_files import package_file

pytestmark = pytest.mark.scale

OURS = package_file("conf/dagster.yaml").read_text()


@pytest.mark.parametrize("destinations", [0, 1, 2])
def test_the_settings_of_a_few_destinations_stay_as_they_are(destinations: int) -> None:
    assert with_workers(OURS, destinations) == OURS
    assert calls_at_once(OURS) == 4 + OTHER_CALLS


@pytest.mark.parametrize("destinations", [3, 20, 100])
def test_the_ticks_of_all_destinations_wait_at_once_and_other_settings_stay(destinations: int, tmp_path: Path) -> None:
    found, before = yaml.safe_load(with_workers(OURS, destinations)), yaml.safe_load(OURS)
    workers = found["sensors"]["num_workers"]
    assert found == {**before, "sensors": {**before["sensors"], "num_workers": workers}}
    assert calls_at_once(yaml.safe_dump(found)) > workers
    with dg.instance_for_test(overrides={"sensors": found["sensors"]}, temp_dir=str(tmp_path)) as instance:
        assert idle_seconds(destinations + MORE_DESTINATIONS, instance)
        assert not idle_seconds(destinations + MORE_DESTINATIONS + 1, instance)


def test_workers_of_the_user_stay_if_they_are_enough_or_if_ticks_have_no_threads() -> None:
    many, alone = "sensors: {use_threads: true, num_workers: 50}  # mine", "sensors: {use_threads: false}"
    assert with_workers(many, 25) == many
    assert with_workers(alone, 25) == alone
