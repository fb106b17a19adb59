"""Lag and throughput of the last hour as a chart in text, in the metadata of the engine's asset. Pure; `observations` draws it.

Dagster plots each number by itself, below "Plots"; this one stands on the asset's page, and shows both beside each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

BARS = "▁▂▃▄▅▆▇█"
POINTS_MAX = 60  # one a minute
Point = tuple[float, float]  # lag in seconds, rows a second


def later(points: Iterable[Point], point: Point) -> tuple[Point, ...]:
    """The newest of them, with one more."""
    return (*points, point)[-POINTS_MAX:]


def drawn(values: Sequence[float]) -> str:
    """A bar each; the highest is full."""
    top = max([*values, 0.0])
    return "".join(BARS[round(max(0.0, value) / top * (len(BARS) - 1)) if top else 0] for value in values)


def chart(points: Sequence[Point]) -> str:
    """Markdown; the newest minute is on the right."""
    lags, rates = [lag for lag, _ in points], [rate for _, rate in points]
    return "\n\n".join(
        f"{name} in the last {len(points)} minutes, 0 to {max([*values, 0.0]):,.0f} {unit}:\n\n`{drawn(values)}`"
        for name, values, unit in (("lag", lags, "s"), ("throughput", rates, "rows/s"))
    )
