"""The chart of lag and throughput: a bar a minute, for an hour, kept by the code server."""

from __future__ import annotations

import json

import pytest

from sluice.orchestration.base.testing import FakeState
from sluice.orchestration.checks.chart import POINTS_MAX, chart, drawn, later
from sluice.orchestration.checks.observations import PublishedObservations, due


def test_the_highest_bar_is_full_and_nothing_is_the_lowest() -> None:
    assert drawn([0.0, 50.0, 100.0]) == "▁▅█"
    assert drawn([0.0, 0.0]) == "▁▁"
    assert chart([(2.0, 1500.0), (4.0, 0.0)]) == (
        "lag in the last 2 minutes, 0 to 4 s:\n\n`▅█`\n\nthroughput in the last 2 minutes, 0 to 1,500 rows/s:\n\n`█▁`"
    )


def test_each_minute_is_a_bar_until_an_hour_is_full() -> None:
    points = later([(float(minute), 0.0) for minute in range(POINTS_MAX)], (99.0, 1.0))
    assert (len(points), points[0], points[-1]) == (POINTS_MAX, (1.0, 0.0), (99.0, 1.0))


@pytest.mark.found
def test_the_cursor_is_one_short_line() -> None:
    """Number 30: the sensor's cursor showed nine lines of JSON, most of them the chart's points."""
    points = tuple((float(each), 100.0) for each in range(60))
    cursor = PublishedObservations(observed_at_seconds=1790000000.123, failing={}, points=points).to_cursor()
    assert json.loads(cursor) == {"observed_at_seconds": 1790000000, "failing": {}}
    assert PublishedObservations.from_cursor(cursor) == PublishedObservations(
        observed_at_seconds=1790000000.0, failing={}
    )


def test_the_engines_asset_shows_the_chart() -> None:
    published = PublishedObservations()
    for minute in range(1, 4):
        state = FakeState(lag_seconds=float(minute), rows_per_second=100.0)
        events, published = due("shop", [], state, {}, published=published, now_seconds=60.0 * minute)
    assert [lag for lag, _ in published.points] == [1.0, 2.0, 3.0]
    assert "`▃▆█`" in str(events[0].metadata["chart"].value)
    same, published = due("shop", [], state, {}, published=published, now_seconds=181.0)
    assert same == []
    assert len(published.points) == 3
