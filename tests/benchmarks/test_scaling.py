"""Tests that `bench scaling` gives executors cores that nothing else uses, as far as the machine has enough cores."""

from __future__ import annotations

import os

from benchmarks.scaling import on_cores, placements


def test_executors_share_no_core_with_the_driver_but_in_the_comparison() -> None:
    assert [(each.name, each.driver, each.executors) for each in placements({0, 1})] == [
        ("one core", (0,), (0,)),
        ("own cores", (0,), (1,)),
    ]
    assert [each.executors for each in placements(range(6))] == [(0,), (1,), (1, 2), (1, 2, 3, 4)]
    assert [each.name for each in placements({3})] == ["one core"]


def test_a_process_is_back_on_all_cores_afterwards() -> None:
    before = os.sched_getaffinity(0)
    with on_cores({min(before)}):
        assert os.sched_getaffinity(0) == {min(before)}
    assert os.sched_getaffinity(0) == before
