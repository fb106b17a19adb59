"""Tests `sluice status` on a terminal: problems come first, and the output fits the screen."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from rich.console import Console

from sluice.cdc_engine.states import SnapshotState
from sluice.console.commands import options
from sluice.console.main import app
from sluice.console.status.report import DestinationStatus, StatusReport, find_problems
from sluice.console.status.screenful import MORE, screenful
from tests.console.conftest import RUNNER, Installation

PROCESS: dict[str, Any] = {"name": "engine", "pid": 1, "port": 1, "alive": True, "rss_mb": 100}


def destination(number: int, *, stops: int = 0, snapshots: int = 0) -> DestinationStatus:
    stopped = [
        {
            "database": "shop",
            "table": f"orders_{each}",
            "state": "DDL_UNSUPPORTED",
            "reason": "a reason that is long. " * 8,
        }
        for each in range(stops)
    ]
    reading = [
        {
            "table": f"shop.t{each}",
            "state": SnapshotState.READING,
            "rows": each,
            "rows_expected": 9,
            "still_seconds": 0.0,
        }
        for each in range(snapshots)
    ]
    return DestinationStatus(
        name=f"destination_{number:03}",
        state="RUNNING",
        cursor="mysql-bin.000123:4567890123@2",
        lag_seconds=float(number),
        tick_age_seconds=1.0,
        stopped_tables=stopped,
        snapshots=reading,
    )


def shown(destinations: list[DestinationStatus], columns: int = 80, rows: int = 24, warnings: int = 0) -> list[str]:
    problems = find_problems([PROCESS], destinations)
    report = StatusReport([PROCESS] * 5, destinations, problems, [f"warning {each}" for each in range(warnings)])
    return [line.plain for line in screenful(report, columns, rows)]


@pytest.mark.parametrize("size", [(80, 24), (60, 16), (200, 60)])
@pytest.mark.parametrize("stops", [0, 1, 300])
def test_the_status_of_many_tables_fits_the_screen(size: tuple[int, int], stops: int) -> None:
    columns, rows = size
    many = [destination(each, stops=stops, snapshots=20) for each in range(40)]
    for number, warnings in itertools.product((0, 1, 40), (0, 1, 30)):
        lines = shown(many[:number], columns, rows, warnings)
        assert len(lines) < rows
        assert max(map(len, lines)) <= columns
        assert lines[-1] == MORE[:columns]


def test_what_is_wrong_comes_first_and_what_does_not_fit_is_counted() -> None:
    lines = shown([destination(each) for each in range(9)] + [destination(9, stops=300)], warnings=5)
    assert lines[0] == "300 problem(s), 300 stopped table(s), 5 warning(s)"
    assert lines[1].startswith("✗ destination_009: the table shop.orders_0 stopped in the state DDL_UNSUPPORTED")
    assert [line for line in lines if line.startswith("✗ … and ")]
    assert [line for line in lines if line.startswith("! … and ")]
    table = next(number for number, line in enumerate(lines) if line.startswith("destination  "))
    assert lines[table + 1].split()[0] == "destination_009"
    assert lines[table + 7].startswith("… and 4 more destinations; the largest lag of these destinations is 8.0 s")


def test_few_problems_are_shown_as_a_whole() -> None:
    lines = shown([destination(1, stops=1)])
    assert not [line for line in lines if "more" in line]
    assert "`sluice schema" in " ".join(lines)


def test_a_terminal_gets_a_screenful_and_verbose_everything(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    installation.destination(1)
    screen = Console(force_terminal=True, width=80, height=24, no_color=True)
    for module in (options, __import__("sluice.console.main", fromlist=["main"])):
        monkeypatch.setattr(module, "screen", screen)
    brief = RUNNER.invoke(app, ["status"])
    assert MORE in brief.output
    assert MORE not in RUNNER.invoke(app, ["status", "--verbose"]).output
