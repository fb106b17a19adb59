"""Tests that an engine that cannot start has a state with a reason in `sluice status`, `sluice check` and the asset's check."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from sluice.cdc_engine.destination_files import read_ledger
from sluice.cdc_engine.errors import (
    ConfigurationError,
    EngineStartingError,
    LeaseLostError,
    LedgerLostError,
    SluiceError,
)
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.cdc_engine.keeping import launcher
from sluice.cdc_engine.keeping.acts import start
from sluice.cdc_engine.keeping.failed_start import note_failed_start
from sluice.console.acts.position import move, request
from sluice.console.check import check_engine
from sluice.console.status.report import find_problems, read_destination
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.orchestration.checks.stopped import read_failures
from tests.instance.fix_destination import Captured
from tests.waiting import wait_for


def started() -> Engine | None:
    try:
        return launcher.get_or_start("shop")
    except EngineStartingError:
        return None


def failure() -> SluiceError | None:
    """Returns why the engine does not start, once the reason is known."""
    try:
        launcher.get_or_start("shop")
    except EngineStartingError:
        return None
    except SluiceError as error:
        return error
    return None


@pytest.mark.servers
@pytest.mark.found
def test_fault_a_ledger_that_is_lost_is_shown_after_a_restart_until_its_advice_was_followed(
    mysql80: DatabaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 10: if meta.json was lost, `status` always showed "STOPPED: `sluice up` starts it again", and `check` was green."""
    captured = Captured(tmp_path, mysql80)
    monkeypatch.setenv("SLUICE_CONF", str(captured.conf))
    directory = captured.directory
    try:
        first = wait_for("the engine has started", started)
        captured.insert(range(3))
        assert captured.take(first, 3) == [0, 1, 2]
        wait_for("it writes its status", (directory / "status.json").exists)
        assert check_engine(captured.config, "shop").problems == ()
        position = read_ledger(directory).cursor
        assert position is not None
        launcher.put_away("shop")
        captured.insert(range(3, 6))  # No engine reads these rows.
        (directory / "meta.json").unlink()
        assert isinstance(wait_for("the start fails", failure), LedgerLostError)
        for age_seconds in (0, 3600):  # The first is the newest attempt. The second is long after the last one.
            now = time.time() + age_seconds
            shown = read_destination(directory, "shop", now)
            assert shown.state == "LEDGER_LOST"
            assert "sluice position set shop" in shown.reason
            assert any("LEDGER_LOST" in problem for problem in find_problems([], [shown]))
            assert read_failures(directory, now)[""].startswith("LEDGER_LOST: ")
        (problem,) = check_engine(captured.config, "shop").problems
        assert problem.startswith("LEDGER_LOST: ")
        assert "sluice position set shop" in problem
        assert "(LEDGER_LOST): " in _reported_start(directory)
        wanted = request(f"{position.file}:{position.offset}", "", latest=False)
        move(captured.config, "shop", wanted, confirm=lambda _: True, say=lambda _: None)
        second = wait_for("the engine has started", started)
        assert captured.take(second, 3) == [3, 4, 5]
        wait_for("it runs", lambda: read_destination(directory, "shop", time.time()).state == "RUNNING")
        assert check_engine(captured.config, "shop").problems == ()
    finally:
        launcher.stop_all()


def _reported_start(directory: Path) -> str:
    """Returns the output of `sluice instance start`, while a thread tries to start the engine again and again, as Dagster's ticks do."""
    ticking = threading.Event()

    def tick() -> None:
        while not ticking.wait(0.1):
            failure()

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        return start("shop", directory, seconds=2.0).message
    finally:
        ticking.set()
        thread.join()


@pytest.mark.found
def test_fault_every_start_that_fails_is_a_state_and_one_that_waits_is_none(tmp_path: Path) -> None:
    """Defect 10: no failed start was written to status.json, so an earlier status stayed."""
    earlier = {"state": "RUNNING", "retention_left_hours": 5.0, "lag_seconds": 1.0, "troubles": ["x"]}
    (tmp_path / "status.json").write_text(json.dumps({**earlier, "updated_at_us": int((time.time() - 3600) * 1e6)}))
    note_failed_start(tmp_path, LeaseLostError("process 7 reads it"))
    assert json.loads((tmp_path / "status.json").read_text())["state"] == "RUNNING", "it runs elsewhere"
    note_failed_start(tmp_path, ConfigurationError("SLUICE_SHOP_PASSWORD is not set"))
    shown = read_destination(tmp_path, "shop", time.time())
    assert (shown.state, shown.reason, shown.troubles) == ("CONFIGURATION", "SLUICE_SHOP_PASSWORD is not set", [])
    assert shown.retention_left_hours == pytest.approx(4.0, abs=0.1), "the source purges while nobody reads"
    assert shown.lag_seconds == pytest.approx(3601, abs=60)
    note_failed_start(tmp_path, KeyError("_sluice_operation"))
    assert read_destination(tmp_path, "shop", time.time()).state == "ERROR"
    note_failed_start(tmp_path / "new", ConfigurationError("a first start"))
    assert read_failures(tmp_path / "new", time.time())[""] == "CONFIGURATION: a first start"
