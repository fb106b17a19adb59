"""Computes and describes the progress of an operation that reads rows or the binlog. Pure."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unit:
    """A unit in which progress is shown. One unit is `size` rows or bytes."""

    name: str
    size: int = 1


ROWS, BINLOG = Unit(name="rows"), Unit(name="MiB", size=1 << 20)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadProgress:
    """The progress of reading rows or the binlog. `done` and `expected` count rows or bytes. `expected` is an estimate, and 0 if unknown.
    `percent` and `seconds_left` are estimates, and None if unknown.
    """

    done: int
    expected: int
    per_second: float
    percent: float | None
    seconds_left: float | None


def measured(done: int, expected: int, seconds: float, *, complete: bool = False) -> ReadProgress:
    """Returns the progress of an operation that has read `done` of `expected` rows or bytes. `seconds` is how long the reading has lasted,
    or 0 if it has not begun. If `complete`, everything is read.
    """
    rate = done / max(seconds, 1e-3) if seconds else 0.0
    if complete:
        return ReadProgress(done=done, expected=done, per_second=rate, percent=100.0, seconds_left=0.0)
    expected = max(expected, done)
    percent = min(99.0, 100.0 * done / expected) if expected and seconds else None
    left = (expected - done) / rate if rate and percent is not None else None
    return ReadProgress(done=done, expected=expected, per_second=rate, percent=percent, seconds_left=left)


def figures(made: ReadProgress, unit: Unit) -> str:
    """Returns the progress as text, such as "5,000 of some 10,000 rows, 50 %, 1,000 rows/s, 5 s left"."""
    of = f" of some {made.expected / unit.size:,.0f}" if made.percent is not None and made.percent < 100 else ""
    parts = [f"{made.done / unit.size:,.0f}{of} {unit.name}", f"{made.per_second / unit.size:,.0f} {unit.name}/s"]
    if made.percent is not None:
        parts.insert(1, f"{made.percent:.0f} %")
    if made.seconds_left:
        parts.append(f"{duration(made.seconds_left)} left")
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """Returns a duration as text, such as "2 h 5 min", "3 min 20 s" or "7 s"."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
