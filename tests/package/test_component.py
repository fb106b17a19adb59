"""Tests the installed Sluice in a Dagster project that `create-dagster` made: its component with `dg dev`, and a
module with `dagster dev`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.servers.installing import uv
from sluice.cdc_engine.file_lock import is_locked
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.ports import free_port
from sluice.console.toolchain.process import LISTENS
from sluice.orchestration.component.engine_process import LOCK_FILE, WANTED_FILE
from tests.component.conftest import REPORT
from tests.package.conftest import Installed
from tests.waiting import wait_for

pytestmark = [pytest.mark.package, pytest.mark.component, pytest.mark.servers, pytest.mark.spark]

DATABASE = "package_component"
MODULE = """
import dagster as dg
import sluice


@dg.asset(deps=[dg.AssetKey(["raw", "orders"])], automation_condition=sluice.on_updates())
def order_report() -> None: ...


defs = dg.Definitions.merge(sluice.build_definitions("conf"), dg.Definitions(assets=[order_report]))
"""
RUN_SECONDS_MAX = 400.0  # The kernels of a new environment are compiled, and Spark starts.


@pytest.fixture(scope="module")
def with_dg(installed: Installed) -> Installed:
    """Installs Dagster's commands for projects into the environment of the installed Sluice."""
    python, constraints = installed.environment / "bin" / "python", installed.environment.parent / "constraints.txt"
    packages = ("dagster-dg-cli", "create-dagster")
    uv("pip", "install", "-q", "--python", str(python), "--constraint", str(constraints), *packages)
    return installed


class Scaffolded:
    """Makes a Dagster project with `create-dagster`, and runs the commands in it that a person runs."""

    def __init__(self, installed: Installed, folder: Path) -> None:
        self._programs, self.root = installed.environment / "bin", folder / "shop-project"
        home, settings = folder / "home", folder / "home" / "settings-of-dg.toml"
        home.mkdir()
        (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
        settings.write_text(
            '[cli]\nsuppress_warnings = ["create_dagster_outdated"]\n[cli.telemetry]\nenabled = false\n'
        )
        self._variables = {
            "DAGSTER_HOME": str(home),
            "DG_CLI_CONFIG": str(settings),
            "PYTHONPATH": str(self.root / "src"),
            "VIRTUAL_ENV": str(installed.environment),
            "PATH": f"{self._programs}:{os.environ['PATH']}",
        }
        self._in(folder, "create-dagster", "project", "shop-project", "--no-uv-sync")
        self.defs = self.root / "src" / "shop_project" / "defs"

    def run(self, *command: str) -> str:
        return self._in(self.root, *command)

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        with (self.root / "dev.log").open("ab") as log:
            words = [*LISTENS, *self._words(command)]
            return subprocess.Popen(words, cwd=self.root, env=self._environment(), stdout=log, stderr=subprocess.STDOUT)

    @contextlib.contextmanager
    def serving(self, *command: str) -> Iterator[None]:
        """Runs a development server of Dagster, and ends it as Ctrl-C does."""
        dev = self.start(*command, "--port", str(free_port()))
        try:
            yield
        finally:
            dev.send_signal(signal.SIGINT)
            try:
                dev.wait(60)
            except subprocess.TimeoutExpired:
                dev.kill()
                pytest.fail(f"{command} did not hear SIGINT: {self.last_words()}")

    def settings(self, spark: int) -> dict[str, Any]:
        """Returns settings with an engine in a process of its own. `spark` is the port of Spark Connect."""
        return {
            "lake": str(self.root / "lake"),
            "engine": {"kind": "remote", "address": f"127.0.0.1:{free_port()}"},
            "ports": {"spark_connect": spark},
            "spark": {"remote": f"sc://127.0.0.1:{spark}"},
        }

    def last_words(self) -> str:
        """Returns the end of what a started command printed."""
        return (self.root / "dev.log").read_text(errors="replace")[-4_000:]

    def _in(self, folder: Path, *command: str) -> str:
        done = subprocess.run(
            self._words(command), cwd=folder, env=self._environment(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def _words(self, command: tuple[str, ...]) -> list[str]:
        return [str(self._programs / command[0]), *command[1:]]

    def _environment(self) -> dict[str, str]:
        ours = ("SLUICE_CONF", "SLUICE_CONF_IN_USE", "SLUICE_TEST_QUICK", "PYTEST_CURRENT_TEST")
        return {**{name: value for name, value in os.environ.items() if name not in ours}, **self._variables}


def destination(port: int) -> dict[str, Any]:
    """Returns the settings of a destination. `port` is the port of the source."""
    return {
        "source": {"user": "root", "port": port},
        "include": f"{DATABASE}\\..*",
        "tables": {f"{DATABASE}.orders": {"snapshot": "initial"}},
    }


@pytest.fixture
def project(with_dg: Installed, mysql80: DatabaseServer, tmp_path: Path) -> Iterator[Scaffolded]:
    with mysql80.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE IF EXISTS {DATABASE}")
        cursor.execute(f"CREATE DATABASE {DATABASE}")
        cursor.execute(f"CREATE TABLE {DATABASE}.orders (id int PRIMARY KEY)")
        cursor.execute(f"INSERT INTO {DATABASE}.orders VALUES (1), (2)")
    made = Scaffolded(with_dg, tmp_path)
    yield made
    data = made.root / ".sluice" / "data"
    (data / WANTED_FILE).unlink(missing_ok=True)
    wait_for("the process of the engines has ended", lambda: not is_locked(data / LOCK_FILE))


@pytest.mark.timeout(600)
def test_an_asset_of_a_scaffolded_project_runs_after_those_of_sluice(
    project: Scaffolded, mysql80: DatabaseServer
) -> None:
    assert "sluice.SluiceComponent" in project.run("dg", "list", "components")
    project.run("dg", "scaffold", "defs", "sluice.SluiceComponent", "sluice")
    project.run("dg", "check", "yaml")

    described = project.defs / "sluice" / "defs.yaml"
    record = yaml.safe_load(described.read_text())
    record["attributes"] = {
        "destinations": {"shop": destination(mysql80.port)},
        "settings": project.settings(free_port()),
        "translation": {"key": "raw/{{ data.table }}"},
    }
    described.write_text(yaml.safe_dump(record))
    (project.defs / "report.py").write_text(REPORT.replace("DATABASE", repr(DATABASE)))
    project.run("dg", "check", "defs")
    assert "raw/orders" in project.run("dg", "list", "defs")

    report = project.root / "report"
    with project.serving("dg", "dev"):
        wait_for("the report has the snapshot", lambda: report.exists() and report.read_text() == "2", RUN_SECONDS_MAX)
        with mysql80.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"INSERT INTO {DATABASE}.orders VALUES (3)")
        wait_for("the report has the new row", lambda: report.read_text() == "3", RUN_SECONDS_MAX)


@pytest.mark.timeout(600)
def test_dagster_dev_serves_a_module_that_builds_the_definitions_and_starts_the_engine(
    project: Scaffolded, mysql80: DatabaseServer
) -> None:
    (project.root / "conf" / "destinations").mkdir(parents=True)
    (project.root / "conf" / "sluice.yaml").write_text(
        yaml.safe_dump({"data_dir": ".sluice/data", **project.settings(free_port())})
    )
    (project.root / "conf" / "destinations" / "shop.yaml").write_text(yaml.safe_dump(destination(mysql80.port)))
    (project.root / "module.py").write_text(MODULE)
    status = project.root / ".sluice" / "data" / "engine" / "shop" / "status.json"
    with project.serving("dagster", "dev", "-f", "module.py"):
        wait_for(
            "the engine reads the source",
            lambda: status.exists() and '"RUNNING"' in status.read_text(),
            RUN_SECONDS_MAX,
        )
