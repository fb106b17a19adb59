"""Tests how fast a snapshot may read, with a simulated clock."""

from __future__ import annotations

from typing import NoReturn

from sluice.cdc_engine.snapshot.pace import (
    BUSY_SECONDS_MAX,
    BUSY_SECONDS_MIN,
    PaceLimits,
    ReadPace,
    due_seconds,
    is_busy,
)


class Clock:
    """A clock that advances only by waiting."""

    def __init__(self) -> None:
        self.now, self.waits = 100.0, list[float]()

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


def test_rows_are_due_at_their_rate_and_a_slow_moment_is_made_up_for_a_second_snapshot() -> None:
    limits = PaceLimits(rows_per_second=1000)
    assert due_seconds(limits, due=10.0, now=10.0, rows=500) == 10.5
    assert due_seconds(limits, due=10.0, now=50.0, rows=500) == 49.5
    assert due_seconds(PaceLimits(), due=10.0, now=50.0, rows=500) == 50.0


def test_a_rate_is_kept_over_many_chunks_snapshot() -> None:
    clock = Clock()
    pace = ReadPace(PaceLimits(rows_per_second=1000), clock=lambda: clock.now, wait=clock.wait)
    for _ in range(20):
        pace.before_chunk()
        pace.after_rows(500)
    assert clock.now - 100.0 == 10.0


def test_a_busy_source_is_waited_for_longer_and_longer_snapshot() -> None:
    clock, running = Clock(), [9] * 8 + [4]
    pace = ReadPace(PaceLimits(threads_running_max=4), lambda: running.pop(0), clock=lambda: clock.now, wait=clock.wait)
    pace.before_chunk()
    assert clock.waits[:3] == [BUSY_SECONDS_MIN, 2 * BUSY_SECONDS_MIN, 4 * BUSY_SECONDS_MIN]
    assert max(clock.waits) == BUSY_SECONDS_MAX
    assert not running


def test_during_a_chunk_the_source_is_queried_once_a_second_snapshot() -> None:
    clock, requested = Clock(), list[float]()

    def threads_running() -> int:
        requested.append(clock.now)
        return 1

    pace = ReadPace(
        PaceLimits(threads_running_max=4, rows_per_second=1000),
        threads_running,
        clock=lambda: clock.now,
        wait=clock.wait,
    )
    for _ in range(24):
        pace.after_rows(128)
    assert len(requested) == 3


def test_without_limits_nothing_is_queried_and_nothing_waits_snapshot() -> None:
    def never(*_: float) -> NoReturn:
        raise AssertionError

    pace = ReadPace(PaceLimits(), never, wait=never)
    pace.before_chunk()
    pace.after_rows(1_000_000)
    assert not is_busy(PaceLimits(), 1000)
