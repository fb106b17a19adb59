"""Draws lag and throughput of the last hour as a text chart for the metadata of the engine's asset. Pure; `observations` uses it.

Dagster plots each number separately, below "Plots". This chart is on the asset's page and shows both together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

BARS = "▁▂▃▄▅▆▇█"
POINTS_MAX = 60  # one per minute
Point = tuple[float, float]  # Lag in seconds, and rows per second.


def later(points: Iterable[Point], point: Point) -> tuple[Point, ...]:
    """Returns the points of the last hour after `point` was appended."""
    return (*points, point)[-POINTS_MAX:]


def drawn(values: Sequence[float]) -> str:
    """Returns one bar per value. The highest value gets a full bar."""
    top = max([*values, 0.0])
    return "".join(BARS[round(max(0.0, value) / top * (len(BARS) - 1)) if top else 0] for value in values)


def chart(points: Sequence[Point]) -> str:
    """Returns the chart as Markdown, with the newest minute on the right."""
    lags, rates = [lag for lag, _ in points], [rate for _, rate in points]
    return "\n\n".join(
        f"{name} in the last {len(points)} minutes, 0 to {max([*values, 0.0]):,.0f} {unit}:\n\n`{drawn(values)}`"
        for name, values, unit in (("lag", lags, "s"), ("throughput", rates, "rows/s"))
    )
