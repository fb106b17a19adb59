"""Tests that `troubles` describes each reason why an engine runs without progress, and that it describes nothing while all is well."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sluice.cdc_engine import limits
from sluice.cdc_engine.errors import ReplicaClashError
from sluice.cdc_engine.instance import pulse
from sluice.cdc_engine.instance.health import Vitals, revive_seconds, troubles
from sluice.cdc_engine.position import Position

WELL = {"destination": "shop", "tick_seconds": 5.0}


@pytest.mark.parametrize(
    "vitals",
    [
        {},
        {"starting_seconds": 60.0},
        {"batch": "#4", "batch_seconds": 200.0},
        {"batch": "#4", "batch_seconds": 500.0, "run": "STARTED"},
        {"unmoved_seconds": 500.0},
        {"batch": "#4", "batch_seconds": 100.0, "unmoved_seconds": 2000.0},
        {"batch": "#4", "batch_seconds": 2000.0, "waiting": True},
    ],
    ids=str,
)
def test_fault_all_is_well(vitals: dict[str, object]) -> None:
    assert troubles(Vitals(**{**WELL, **vitals})) == ()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("vitals", "words"),
    [
        ({"tick_seconds": 95.0}, ["shop_engine", "95 s since the last successful tick", "daemon", "`sluice up`"]),
        (
            {"tick_seconds": 95.0, "tick_failed": "OSError: database is locked", "tick_failed_seconds": 20.0},
            [
                "ticks of the sensor shop_engine have failed for",
                "daemon runs",
                "20 s ago with OSError: database is locked",
            ],
        ),
        ({"tick_seconds": 900.0, "tick_failed": "OSError: x", "tick_failed_seconds": 600.0}, ["no tick of the sensor"]),
        ({"tick_seconds": 700.0, "ever_ticked": False}, ["12 min since the engine started"]),
        ({"starting_seconds": 200.0}, ["starting for 3 min"]),
        (
            {"batch": "#4", "batch_seconds": 400.0},
            ["batch #4 was handed out and has no ack for 7 min", "Dagster has no run of the batch"],
        ),
        ({"batch": "#4", "batch_seconds": 400.0, "run": "QUEUED"}, ["the run of the batch is QUEUED", "queue"]),
        ({"batch": "#4", "batch_seconds": 9000.0, "run": "STARTED"}, ["2.5 h", "still works"]),
        ({"batch": "#4", "batch_seconds": 700.0, "run": "STARTED"}, ["12 min", "whether Spark answers"]),
        (
            {"failing": "3 runs in a row failed, the newest with: a type"},
            ["3 runs in a row failed", "a type", "error to correct"],
        ),
        ({"unmoved_seconds": 700.0}, ["changes have waited for 12 min", "`sluice up`"]),
        ({"retention": "the source may purge what a restart would read in 4.0 h"}, ["may purge", "4.0 h"]),
        ({"lake": ("shop.orders is TABLE_RESTORED",)}, ["shop.orders is TABLE_RESTORED"]),
        ({"stream": "the stream stands still"}, ["the stream stands still"]),
    ],
    ids=str,
)
def test_fault_a_problem_is_reported_with_its_age_and_what_to_do(vitals: dict[str, object], words: list[str]) -> None:
    (sentence,) = troubles(Vitals(**{**WELL, **vitals}))  # type: ignore[arg-type]
    for word in words:
        assert word in sentence


def test_fault_a_cursor_that_stands_still_is_timed_from_when_changes_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(pulse, "time", SimpleNamespace(monotonic=lambda: now[0], time=lambda: now[0]))
    beat, here, there = pulse.Pulse(), *(Position(epoch=1, file="b.1", offset=each) for each in (50, 99))
    assert beat.unmoved_seconds(here, waits=False) == 0.0
    now[0] = 1000.0
    assert beat.unmoved_seconds(here, waits=False) == 0.0, "a source that is silent for long is well"
    now[0] = 1700.0
    assert beat.unmoved_seconds(here, waits=True) == 700.0
    assert beat.unmoved_seconds(there, waits=True) == 0.0, "an ack is progress"
    now[0] = 1800.0
    assert beat.unmoved_seconds(there, waits=True) == 100.0


def test_fault_runs_fail_until_one_is_acked() -> None:
    beat = pulse.Pulse()
    beat.failing = "2 runs in a row failed"
    beat.ticked()
    assert beat.failing
    beat.acked()
    assert beat.failing == ""


@pytest.mark.found
def test_a_tick_that_failed_is_remembered_until_one_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect 29: the status said that Dagster's daemon does not run, although it ran and its ticks failed."""
    now = [100.0]
    monkeypatch.setattr(pulse, "time", SimpleNamespace(monotonic=lambda: now[0], time=lambda: now[0]))
    beat = pulse.Pulse()
    beat.ticked("OSError: database is locked")
    now[0] = 130.0
    assert beat.tick_failed() == ("OSError: database is locked", 30.0)
    assert not beat.ever_ticked, "a tick that failed has settled nothing"
    beat.ticked()
    assert beat.tick_failed() == ("", 0.0)
    assert beat.ever_ticked


def test_fault_the_wait_before_a_restart_doubles_up_to_its_limit() -> None:
    clash = ReplicaClashError("two replicas have one server id")
    waits = [revive_seconds(clash, revived) for revived in range(100)]
    assert waits[:3] == [limits.REVIVE_SECONDS, 2 * limits.REVIVE_SECONDS, 4 * limits.REVIVE_SECONDS]
    assert max(filter(None, waits)) == 60.0
