"""Tests what a tick publishes about an engine: numbers for the plots of its asset, and the sensor's cursor."""

from __future__ import annotations

import json

import dagster as dg
import pytest

from sluice.orchestration.base.testing import FakeState
from sluice.orchestration.checks.observations import PublishedObservations, due


@pytest.mark.found
def test_the_cursor_is_one_short_line() -> None:
    """Defect 30: the sensor's cursor showed nine lines of JSON, most of them points of a chart."""
    cursor = PublishedObservations(observed_at_seconds=1790000000.123, failing={}).to_cursor()
    assert json.loads(cursor) == {"observed_at_seconds": 1790000000, "failing": {}}
    assert PublishedObservations.from_cursor(cursor) == PublishedObservations(
        observed_at_seconds=1790000000.0, failing={}
    )


@pytest.mark.found
def test_lag_and_throughput_are_numbers_that_dagster_plots_and_no_text() -> None:
    """Defect 30: the engine's asset showed lag and throughput as a chart of block characters."""
    published = PublishedObservations()
    plotted = []
    for minute in range(1, 4):
        state = FakeState(lag_seconds=float(minute), rows_per_second=100.0)
        (observed, *_), published = due("shop", [], state, {}, published=published, now_seconds=60.0 * minute)
        assert not [each for each in observed.metadata.values() if isinstance(each, dg.MarkdownMetadataValue)]
        plotted.append([observed.metadata[name] for name in ("lag_seconds", "rows_per_second")])
    assert plotted == [[dg.MetadataValue.float(float(minute)), dg.MetadataValue.float(100.0)] for minute in range(1, 4)]
    again, _ = due("shop", [], state, {}, published=published, now_seconds=181.0)
    assert again == []
