"""Tests that the tables are equal after a short soak with one fault of each kind. Under traffic, the source fails over, and ZooKeeper, the
engine and Spark are killed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.soak.installation import SoakedInstallation
from benchmarks.soak.memory_slope import sizes, slope
from benchmarks.soak.soak import FAULTS, Length, holds, soak

pytestmark = [pytest.mark.servers, pytest.mark.spark]


@pytest.fixture
def soaked(tmp_path: Path) -> Iterator[SoakedInstallation]:
    made = SoakedInstallation(tmp_path, lambda _: None, session_seconds=6.0, spark_memory="2g", warms_spark=False)
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.mark.timeout(600)
def test_soak_ha_failover_each_fault_once_and_the_tables_are_equal(soaked: SoakedInstallation) -> None:
    reported: list[dict[str, object]] = []
    record = soak(soaked, Length(seconds=0, between_seconds=0), lambda _: None, reported.append)
    assert holds(record), record
    assert {name: found["count"] for name, found in record["faults"].items()} == {name: 1 for name, _ in FAULTS}
    assert [each["rows"] for each in record["tables"]][1] == record["transactions"] > 0
    assert record["memory"]["code server"]["lives"] == 2
    assert len(reported) == 1 + len(FAULTS)


def test_soak_sizes_are_printed_each_ten_minutes() -> None:
    life = [(float(second), 100 + second / 60) for second in range(0, 1900, 2)]
    assert sizes(life) == [100, 110, 120, 130]


def test_soak_a_slope_is_of_what_comes_after_the_start() -> None:
    rising = [(float(second), min(second, 400) * 5.0) for second in range(1000)]
    assert slope(rising) == 0.0
    assert slope([(float(second), second * 0.01) for second in range(1000)]) == 36.0
    assert slope(rising[:390]) is None
