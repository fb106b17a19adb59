"""Each way in which nothing flows though the engine runs has its sentence; and none while all is well."""

from __future__ import annotations

import pytest

from cdc_engine.instance.health import Vitals, troubles

WELL = {"destination": "shop", "tick_seconds": 5.0}


@pytest.mark.parametrize(
    "vitals",
    [
        {},
        {"starting_seconds": 60.0},
        {"batch": "#4", "batch_seconds": 200.0},
        {"batch": "#4", "batch_seconds": 2000.0, "run": "STARTED"},
        {"batch": "#4", "batch_seconds": 2000.0, "waiting": True},
    ],
    ids=str,
)
def test_fault_all_is_well(vitals: dict[str, object]) -> None:
    assert troubles(Vitals(**{**WELL, **vitals})) == ()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("vitals", "words"),
    [
        ({"tick_seconds": 95.0}, ["shop_engine", "95 s since the last one", "daemon", "./sluice up"]),
        ({"tick_seconds": 700.0, "ever_ticked": False}, ["12 min since it started"]),
        ({"starting_seconds": 200.0}, ["starting for 3 min"]),
        ({"batch": "#4", "batch_seconds": 400.0}, ["batch #4 has been out for 7 min", "Dagster has no run of it"]),
        ({"batch": "#4", "batch_seconds": 400.0, "run": "QUEUED"}, ["its run is QUEUED", "queue"]),
        ({"batch": "#4", "batch_seconds": 9000.0, "run": "STARTED"}, ["2.5 h", "still works"]),
        ({"lake": ("shop.orders is TABLE_RESTORED",)}, ["shop.orders is TABLE_RESTORED"]),
        ({"stream": "the stream stands still"}, ["the stream stands still"]),
    ],
    ids=str,
)
def test_fault_what_is_not_well_is_said_with_its_age_and_what_to_do(
    vitals: dict[str, object], words: list[str]
) -> None:
    (sentence,) = troubles(Vitals(**{**WELL, **vitals}))  # type: ignore[arg-type]
    for word in words:
        assert word in sentence
