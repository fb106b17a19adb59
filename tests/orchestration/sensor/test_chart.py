"""The chart of lag and throughput: a bar a minute, for an hour, kept in the sensor's cursor."""

from __future__ import annotations

from orchestration.sensor.chart import POINTS_MAX, chart, drawn, later
from orchestration.sensor.observations import Published, due
from orchestration.testing import FakeState


def test_the_highest_bar_is_full_and_nothing_is_the_lowest() -> None:
    assert drawn([0.0, 50.0, 100.0]) == "▁▅█"
    assert drawn([0.0, 0.0]) == "▁▁"
    assert chart([(2.0, 1500.0), (4.0, 0.0)]) == (
        "lag in the last 2 minutes, 0 to 4 s:\n\n`▅█`\n\nthroughput in the last 2 minutes, 0 to 1,500 rows/s:\n\n`█▁`"
    )


def test_each_minute_is_a_bar_until_an_hour_is_full() -> None:
    points = later([(float(minute), 0.0) for minute in range(POINTS_MAX)], (99.0, 1.0))
    assert (len(points), points[0], points[-1]) == (POINTS_MAX, (1.0, 0.0), (99.0, 1.0))


def test_the_engines_asset_shows_the_chart_also_after_a_restart_of_the_sensor() -> None:
    published = Published()
    for minute in range(1, 4):
        state = FakeState(lag_seconds=float(minute), rows_per_second=100.0)
        events, published = due("shop", [], state, {}, published=published, now_seconds=60.0 * minute)
        published = Published.from_cursor(published.to_cursor())
    assert [lag for lag, _ in published.points] == [1.0, 2.0, 3.0]
    assert "`▃▆█`" in str(events[0].metadata["chart"].value)
    same, published = due("shop", [], state, {}, published=published, now_seconds=181.0)
    assert same == []
    assert len(published.points) == 3
