"""Tests that assets downstream of Sluice's tables run after every batch, even if the batch is merged while they run."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg
import pytest

import sluice

pytestmark = pytest.mark.component


@dg.asset
def orders() -> None: ...


@dg.asset(deps=[orders], automation_condition=sluice.on_updates())
def report() -> None: ...


SELECTION = dg.AssetSelection.assets(orders, report)


class Ticks:
    """Runs ticks of the automation sensor for a table and a report that depends on it."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self._instance = instance
        self._last: dg.EvaluateAutomationConditionsResult | None = None
        self._definitions = dg.Definitions([orders, report])

    def requested(self) -> int:
        self._last = dg.evaluate_automation_conditions(
            self._definitions,
            self._instance,
            asset_selection=SELECTION,
            cursor=self._last.cursor if self._last else None,
        )
        return self._last.total_requested

    def materialize(self, *assets: str) -> None:
        for asset in assets:
            self._instance.report_runless_asset_event(dg.AssetMaterialization(asset))


@pytest.fixture
def ticks() -> Iterator[Ticks]:
    with dg.DagsterInstance.ephemeral() as instance:
        made = Ticks(instance)
        assert made.requested() == 0
        made.materialize("orders")
        assert made.requested() == 1
        yield made


def test_one_update_is_one_run(ticks: Ticks) -> None:
    ticks.materialize("report")
    assert [ticks.requested(), ticks.requested()] == [0, 0]


def test_an_update_just_before_the_report_is_written_runs_it_again(ticks: Ticks) -> None:
    ticks.materialize("orders", "report")
    assert ticks.requested() == 1


def test_an_update_after_the_request_and_before_the_report_is_written_runs_it_again(ticks: Ticks) -> None:
    ticks.materialize("orders")
    assert ticks.requested() == 1
    ticks.materialize("report")
    assert ticks.requested() == 0
