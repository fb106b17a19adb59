"""Tests `status` if engines, Dagster and Spark are on other hosts or in containers: it names the host that reads."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sluice.cdc_engine.config import load_config
from sluice.cdc_engine.ha.leases import open_lease
from sluice.cdc_engine.records.location import as_location
from sluice.console.main import app
from tests.console.conftest import RUNNER, Installation
from tests.console.test_status import everything_runs, running_engine

ENGINE = {
    "kind": "remote",
    "address": "engine1:4267,engine2:4267",
    "listen": "0.0.0.0:4267",
    "token": "$TOKEN",
    "ca_file": "authority.pem",
}


@pytest.fixture
def apart(installation: Installation, tmp_path: Path) -> Installation:
    """Sets up a shared ledger, and engines on two other hosts."""
    main = yaml.safe_load((installation.conf / "sluice.yaml").read_text())
    url = f"sqlite:///{tmp_path}/meta.db"
    installation.write("sluice.yaml", {**main, "meta": {"kind": "sql", "url": url}, "engine": ENGINE})
    installation.destination(1)
    return installation


@pytest.fixture
def held_elsewhere(apart: Installation, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Takes the lease of an engine as another host."""
    with monkeypatch.context() as there:
        there.setattr(socket, "gethostname", lambda: "engine1")
        lease = open_lease(as_location(load_config().destination_dir("shop")))
        assert lease.try_acquire()
    yield "engine1"
    lease.release()


def status() -> tuple[int, dict[str, Any], str]:
    found = RUNNER.invoke(app, ["status", "--json"])
    return found.exit_code, json.loads(found.stdout), RUNNER.invoke(app, ["status"]).stdout


def test_ha_a_host_that_reads_nothing_names_the_host_that_does(held_elsewhere: str, apart: Installation) -> None:
    code, found, shown = status()
    assert (code, found["problems"]) == (0, [])
    (shop,) = found["destinations"]
    assert shop["state"] == "STANDBY"
    assert f"the engine on {held_elsewhere} reads this destination" in shop["reason"]
    assert "Dagster's plots show lag" in shop["reason"]
    none_here, standby = found["warnings"]
    assert "no process of `sluice up` runs on this host" in none_here
    assert standby.startswith("shop is STANDBY: the engine on engine1 reads this destination")
    assert shown.splitlines()[-1] == "no problems; 2 warning(s)"
    assert "sluice up` starts" not in shown


def test_ha_what_this_host_reported_before_another_one_took_over_is_not_shown(
    held_elsewhere: str, apart: Installation
) -> None:
    before = time.time_ns() // 1000 - 60_000_000
    running_engine(apart.data / "engine" / "shop", updated_at_us=before, state="LEASE_LOST", troubles=("a full disk",))
    code, found, _ = status()
    (shop,) = found["destinations"]
    assert (code, shop["state"], shop["position"], shop["troubles"]) == (0, "STANDBY", "", [])


@pytest.mark.found
def test_ha_a_lag_is_shown_only_if_the_engine_that_reads_reports_it(held_elsewhere: str, apart: Installation) -> None:
    """Defect 30: `status` showed a lag of 0.0 s for a destination that another host reads."""
    _, found, shown = status()
    assert found["destinations"][0]["lag_seconds"] is None
    assert "0.0 s" not in shown
    assert "0.0 s" not in RUNNER.invoke(app, ["instance", "list"]).stdout
    # The other host writes this status, into a folder that both hosts use.
    running_engine(apart.data / "engine" / "shop", lag_seconds=7.5)
    _, found, shown = status()
    assert found["destinations"][0]["lag_seconds"] == 7.5
    assert "7.5 s" in shown


def test_ha_an_engine_host_in_a_container_shows_its_own_engine(apart: Installation) -> None:
    running_engine(apart.data / "engine" / "shop")
    code, found, _ = status()
    assert (code, found["destinations"][0]["state"]) == (0, "RUNNING")
    running_engine(apart.data / "engine" / "shop", state="POSITION_LOST", reason="purged")
    assert status()[0] == 1


def test_ha_a_destination_that_no_host_reads_is_a_problem(apart: Installation) -> None:
    code, found, _ = status()
    assert code == 1
    assert found["destinations"][0]["state"] == "STOPPED"


def test_ha_processes_of_this_host_are_still_missed(held_elsewhere: str, apart: Installation) -> None:
    file = everything_runs(apart)
    assert status()[0] == 0
    file.save([each for each in file.load() if each.name != "daemon"])
    code, found, _ = status()
    assert code == 1
    assert any("the daemon was never started" in each for each in found["problems"])
