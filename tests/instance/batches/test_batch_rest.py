"""Tests where a batch ends if changes arrive while the batch is staged."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from sluice.cdc_engine.contracts import NOTHING, Batch
from sluice.cdc_engine.instance.batches import hand_out
from sluice.cdc_engine.position import Position

NOW = 1_700_000_000.0
MANY = 1 << 40


class Following:
    """Imitates a stream that always has more changes. `requested` counts how often more changes were requested."""

    def __init__(self) -> None:
        self.requested = 0

    def get_more(self, taken: Batch, *_: Any, **__: Any) -> Batch:
        self.requested += 1
        return taken


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Replaces the clock of `hand_out`. Returns a list whose one element is the time of the monotonic clock in seconds."""
    seconds = [100.0]
    monkeypatch.setattr(hand_out, "time", SimpleNamespace(monotonic=lambda: seconds[0], time=lambda: NOW))
    return seconds


def part(age_seconds: float, size: int) -> Batch:
    end = Position(epoch=1, file="b.000001", offset=4, time_us=int((NOW - age_seconds) * 1e6))
    return Batch(batch_id=1, start=end, end=end, event_count=1, byte_count=size)


def rest(stream: Following) -> hand_out._Rest:
    return hand_out._Rest(cast("Any", stream), hand_out.BatchLimits(bytes_max=MANY, events_max=MANY))


def test_a_batch_of_recent_changes_ends_after_its_first_small_part(clock: list[float]) -> None:
    stream = Following()
    assert rest(stream)(part(0.0, 10)) is NOTHING
    assert stream.requested == 0


def test_a_batch_of_old_changes_continues_until_little_arrives(clock: list[float]) -> None:
    stream = Following()
    read, little = rest(stream), part(hand_out.LIVE_SECONDS_MAX + 1, 10)
    assert read(little) is little
    clock[0] += hand_out.GET_SECONDS
    assert read(little) is NOTHING, "only 20 bytes arrived within the interval"


def test_a_batch_continues_while_much_arrives(clock: list[float]) -> None:
    stream = Following()
    much = part(0.0, hand_out.MORE_BYTES_MIN)
    read = rest(stream)
    for _ in range(3):
        assert read(much) is much
        clock[0] += hand_out.GET_SECONDS
    assert stream.requested == 3


def test_the_limit_between_live_and_old_is_two_seconds_after_a_commit(clock: list[float]) -> None:
    assert not hand_out._old(part(1.9, 1))
    assert hand_out._old(part(2.1, 1))


def test_the_longer_a_batch_was_staged_the_longer_it_waits_for_more() -> None:
    assert hand_out.more_seconds(0.0) == hand_out.MORE_SECONDS_MIN
    assert hand_out.MORE_SECONDS_MIN < hand_out.more_seconds(1.0) < hand_out.GET_SECONDS
    assert hand_out.more_seconds(60.0) == hand_out.GET_SECONDS
