"""Tests the parts into which `bench e2e` and `bench wide` divide the time until a change is visible and acked."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.observing.waits import PARTS, DeliveryTimes

WHOLE = DeliveryTimes(
    handed_out=10.0, staged=10.25, requested=10.5, dequeued=11.0, started=11.5, taken=12.0,
    first_commit=13.0, shown=13.5, last_commit=14.0, settled=15.0,
)  # fmt: skip


def test_the_parts_of_a_change_add_up_to_the_time_until_its_ack() -> None:
    parts = WHOLE.parts(9.0)
    assert list(parts) == list(PARTS)
    assert sum(parts.values()) == WHOLE.settled - 9.0
    assert (parts["wait_for_batch"], parts["queue"], parts["settling"]) == (1.0, 0.5, 1.0)


def test_a_change_that_a_run_appends_waits_for_nothing_before_that() -> None:
    parts = WHOLE.parts(11.75)
    assert [name for name, seconds in parts.items() if not seconds] == [
        *("wait_for_batch", "staging", "request", "queue", "start"),
    ]
    assert parts["take"] == 0.25


@pytest.mark.parametrize("unknown", ["requested", "dequeued", "started"])
def test_a_time_that_was_not_observed_is_part_of_the_next_one(unknown: str) -> None:
    parts = dataclasses.replace(WHOLE, **{unknown: 0.0}).parts(9.0)
    assert sum(parts.values()) == WHOLE.settled - 9.0
    assert all(seconds >= 0 for seconds in parts.values())
