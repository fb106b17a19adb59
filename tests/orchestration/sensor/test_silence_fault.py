"""Tests an engine whose own sensor is switched off: the check on its asset fails nevertheless, and passes when the sensor is on again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from sluice.cdc_engine.errors import MetaError
from sluice.cdc_engine.instance.status import EngineStatus, write_status
from sluice.cdc_engine.limits import TICK_SILENCE_SECONDS_MAX
from sluice.cdc_engine.snapshot.record import wanted
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.status_file import STATUS_FILE
from sluice.orchestration.base.testing import position
from sluice.orchestration.checks.observations import ENGINE_CHECK
from sluice.orchestration.code_location import build_definitions
from tests.orchestration.fix_location import make_config, make_fake_ports, write_tables
from tests.orchestration.sensor import test_tick


class Shop:
    """Provides the snapshot sensor of one destination. `engine` writes the status that the destination's engine would report."""

    def __init__(self, root: Path, instance: dg.DagsterInstance) -> None:
        config = make_config(root)
        self.directory = config.destination_dir("shop")
        write_tables(self.directory)
        self.defs = build_definitions(config, make_fake_ports(config).ports())
        self.instance, self.cursor = instance, ""

    def engine(self, silent_seconds: float, *troubles: str) -> None:
        now = time.time_ns() // 1000
        ticked = now - int(silent_seconds * 1e6)
        write_status(
            self.directory / STATUS_FILE,
            EngineStatus(state="RUNNING", troubles=troubles, ticked_at_us=ticked, updated_at_us=now),
        )

    def published(self) -> list[bool]:
        """Runs a tick. Returns for each result of the engine's check that the tick publishes whether the check passed."""
        context = dg.build_sensor_context(
            instance=self.instance, cursor=self.cursor, repository_def=self.defs.get_repository_def()
        )
        with context:
            answer: Any = self.defs.resolve_sensor_def("shop_snapshots").evaluate_tick(context)
        self.cursor = answer.cursor or ""
        assert {each.check_name for each in answer.asset_events} <= {ENGINE_CHECK}
        return [each.passed for each in answer.asset_events]


def test_fault_the_check_fails_once_while_the_sensor_is_silent_and_passes_when_it_is_back(tmp_path: Path) -> None:
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        shop = Shop(tmp_path, instance)
        assert shop.published() == [], "no engine has run yet"
        shop.engine(5)
        assert shop.published() == []
        shop.engine(TICK_SILENCE_SECONDS_MAX + 5, "no tick of the sensor shop_engine for 95 s")
        assert shop.published() == [False]
        assert shop.published() == []
        shop.engine(1)
        assert shop.published() == [True]
        assert shop.published() == []


@pytest.mark.found
def test_fault_a_tick_is_recorded_although_a_record_of_a_snapshot_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 1047: while the records of snapshots could not be read, `status` said that no tick arrives. Draining runs ended for the same
    reason.
    """
    monkeypatch.setattr("sluice.orchestration.sensor.tick.TICK_SECONDS_MAX", 0.4)
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        shop = test_tick.Shop(tmp_path, instance)
        records = SnapshotRecords(shop.engine.directory)
        records.begin(wanted("shop.orders", position(4), time.time()))
        (record,) = (shop.engine.directory / "snapshots").rglob("*.json")
        record.write_text("damaged")
        with pytest.raises(MetaError):
            records.all()
        shop.tick()
        assert shop.engine.ticks == 1
