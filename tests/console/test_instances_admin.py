"""Tests a code server with real engines: files of conf/ appear, become invalid, change and disappear, and `sluice instance` acts. The code
server never restarts for this.

All tests use one code server and one MySQL, without a daemon and without Spark. The tests depend on each other's order.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dagster._grpc.client import DagsterGrpcClient

from sluice.cdc_engine.destination_files import lease_holder
from sluice.console.main import app
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.ports import free_port
from sluice.console.toolchain.process import ChildProcess
from tests.console.conftest import RUNNER
from tests.instance.fix_destination import Captured
from tests.style.sources import ROOT as PROJECT_ROOT
from tests.waiting import wait_for

pytestmark = pytest.mark.servers

SECONDS_MAX = 60.0


class Installation:
    """A conf/, and the process that runs its engines."""

    def __init__(self, root: Path, server: DatabaseServer) -> None:
        self.root, self.captured = root, Captured(root, server)
        self.port, self.home = free_port(), root / "home"
        self.home.mkdir()
        (self.home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
        self.source = (
            f"source: {{user: root, port: {server.port}}}\ninclude: {self.captured.database}\\..*\n"
            "table_path: 'web/{table}'\n"
        )
        environment = {
            **os.environ,
            "SLUICE_CONF": str(self.captured.conf),
            "DAGSTER_HOME": str(self.home),
            "PYTHONPATH": str(PROJECT_ROOT),
        }
        where = [
            "-m",
            "sluice.orchestration.definitions",
            "-h",
            "127.0.0.1",
            "-p",
            str(self.port),
            "--location-name",
            "sluice",
        ]
        command = [sys.executable, "-m", "sluice.orchestration.code_server", *where]
        log = root / "data" / "logs" / "code-server.log"
        log.parent.mkdir(parents=True)
        self.process = ChildProcess(command, log, environment=environment, die_with_parent=True)
        self.client = DagsterGrpcClient(host="127.0.0.1", port=self.port)

    def put(self, name: str, text: str) -> None:
        (self.captured.conf / "destinations" / f"{name}.yaml").write_text(text)

    def remove(self, name: str) -> None:
        (self.captured.conf / "destinations" / f"{name}.yaml").unlink()

    def directory(self, name: str) -> Path:
        return self.root / "data" / "engine" / name

    def token(self, name: str) -> int:
        """Returns the token of the lease, or 0 if nobody holds the lease."""
        holder = lease_holder(self.directory(name))
        return holder.token if holder is not None and holder.held else 0

    def state(self, name: str) -> dict[str, Any]:
        path = self.directory(name) / "status.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def reads(self, name: str) -> bool:
        state = self.state(name)
        fresh = time.time() - state.get("updated_at_us", 0) / 1e6 < 3
        return bool(self.token(name)) and state.get("state") == "RUNNING" and fresh

    def sensors(self) -> set[str]:
        """Returns the sensors that Dagster's webserver and daemon see."""
        from dagster._core.errors import DagsterUserCodeUnreachableError  # noqa: PLC0415
        from dagster._core.remote_origin import (  # noqa: PLC0415
            GrpcServerCodeLocationOrigin,
            RemoteRepositoryOrigin,
        )

        origin = GrpcServerCodeLocationOrigin(host="127.0.0.1", port=self.port, location_name="sluice")
        try:
            text = self.client.external_repository(
                RemoteRepositoryOrigin(origin, "__repository__"), defer_snapshots=True
            )
        except DagsterUserCodeUnreachableError:
            return set()
        return {word for word in ("shop_engine", "web_engine") if f'"{word}"' in text}

    def call(self, *words: str) -> tuple[int, str]:
        answer = RUNNER.invoke(app, ["instance", *words])
        return answer.exit_code, answer.output


@pytest.fixture(scope="module")
def installation(mysql80: DatabaseServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    made = Installation(tmp_path_factory.mktemp("instances"), mysql80)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLUICE_CONF", str(made.captured.conf))
        patch.setenv("COLUMNS", "250")
        patch.delenv("SLUICE_CONF_IN_USE", raising=False)
        try:
            wait_for("shop is read", lambda: made.reads("shop"), SECONDS_MAX)
            wait_for("the code server serves", lambda: made.sensors() == {"shop_engine"}, SECONDS_MAX)
            yield made
        finally:
            made.process.kill()


def test_admin_a_new_file_is_an_engine_and_a_sensor_without_a_restart(installation: Installation) -> None:
    before = installation.token("shop"), installation.client.get_server_id()
    installation.put("web", installation.source)
    wait_for("web is read", lambda: installation.reads("web"), SECONDS_MAX)
    wait_for("its sensor is there", lambda: installation.sensors() == {"shop_engine", "web_engine"}, SECONDS_MAX)
    assert installation.client.get_server_id() != before[1]
    assert installation.token("shop") == before[0], "the other goes on"


@pytest.mark.found
def test_a_password_variable_that_is_not_set_is_the_reason(installation: Installation) -> None:
    """Defect 29: after `up` ran without the password variable, `status` showed "no engine has run yet; `sluice up` starts it"."""
    installation.put("lost", installation.source.replace("user: root", "user: root, password: $SLUICE_TEST_UNSET"))
    try:
        wait_for(
            "its start has failed",
            lambda: installation.state("lost").get("state") not in {None, "STARTING"},
            SECONDS_MAX,
        )
        status = json.loads(RUNNER.invoke(app, ["status", "--json"]).output)
        lost = next(each for each in status["destinations"] if each["name"] == "lost")
        assert "the environment variable SLUICE_TEST_UNSET is not set" in lost["reason"]
        assert any(lost["reason"] in each for each in status["problems"])
    finally:
        installation.remove("lost")
    wait_for("its sensor is gone", lambda: installation.sensors() == {"shop_engine", "web_engine"}, SECONDS_MAX)


def test_admin_a_file_that_breaks_is_reported_and_its_engine_continues(installation: Installation) -> None:
    before = installation.token("web")
    installation.put("web", installation.source + "inclde: x\n")
    wait_for("it is in the log", lambda: "inclde" in installation.call("log", "web")[1], SECONDS_MAX)
    assert (installation.token("web"), installation.reads("web")) == (before, True)
    code, said = installation.call("list", "--json")
    assert code == 0
    web = next(each for each in json.loads(said) if each["name"] == "web")
    assert (web["state"], web["wanted"]) == ("RUNNING", "run")
    assert "inclde" in web["conf"]
    status = RUNNER.invoke(app, ["status", "--json"])
    assert status.exit_code == 1
    assert any(
        "conf/destinations/web.yaml is not used, and the last valid content of this file stays in use" in each
        for each in json.loads(status.output)["problems"]
    )


def test_admin_a_file_that_changes_is_another_engine_of_that_destination_alone(installation: Installation) -> None:
    before = installation.token("web"), installation.token("shop")
    installation.put("web", installation.source + "lag_seconds_max: 77\n")
    wait_for(
        "web is read by a new engine",
        lambda: installation.token("web") > before[0] and installation.reads("web"),
        SECONDS_MAX,
    )
    assert installation.token("shop") == before[1]


def test_admin_a_stop_is_kept_and_a_start_ends_it(installation: Installation) -> None:
    code, said = installation.call("stop", "web")
    assert code == 0, said
    assert "web is stopped" in said
    assert "sluice instance start web" in said
    assert installation.token("web") == 0
    status = json.loads(RUNNER.invoke(app, ["status", "--json"]).output)
    web = next(each for each in status["destinations"] if each["name"] == "web")
    assert web["state"] == "STOPPED"
    assert "start the engine with `sluice instance start web`" in web["reason"]
    assert installation.call("restart", "web")[0] == 1, "it is stopped"
    assert installation.reads("shop")
    code, said = installation.call("start", "web", "--json")
    assert code == 0, said
    assert json.loads(said)["done"]
    assert installation.token("web")


def test_admin_a_restart_is_another_engine_of_that_destination_alone(installation: Installation) -> None:
    before = installation.token("web"), installation.token("shop")
    code, said = installation.call("restart", "web")
    assert code == 0, said
    assert (installation.token("web") > before[0], installation.token("shop")) == (True, before[1])


def test_admin_a_file_that_goes_ends_its_engine_and_leaves_its_ledger(installation: Installation) -> None:
    installation.remove("web")
    wait_for("web is not read", lambda: not installation.token("web"), SECONDS_MAX)
    wait_for("its sensor is gone", lambda: installation.sensors() == {"shop_engine"}, SECONDS_MAX)
    assert (installation.directory("web") / "meta.json").exists()
    web = next(each for each in json.loads(installation.call("list", "--json")[1]) if each["name"] == "web")
    assert web["state"] == "REMOVED"
    assert "the ledger of the destination stays in" in web["message"]
    assert installation.call("stop", "web")[0] == 1, "there is no such destination"
    assert installation.reads("shop")


def test_admin_ha_a_release_leaves_the_destination_to_another_host(installation: Installation) -> None:
    before = installation.token("shop")
    code, said = installation.call("release", "shop", "--wait", "5")
    assert code == 0, said
    assert "no other host has taken" in said
    assert installation.token("shop") == 0, "this one does not take it back at once"
    code, said = installation.call("start", "shop", "--wait", "1")
    assert code == 1, "it is left alone for half a minute"
    assert before
