"""A project of the user with Sluice's component: what `dg` says of it, and `dagster dev` alone, from a change to a downstream asset."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sluice.cdc_engine.file_lock import is_locked
from sluice.console.stack.processes import ProcessFile
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.ports import free_port
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.orchestration.component.engine_process import LOCK_FILE
from tests.component.conftest import Project
from tests.waiting import wait_for, wait_until_gone

pytestmark = [pytest.mark.component, pytest.mark.servers, pytest.mark.spark]

DATABASE = "component_shop"
RUN_SECONDS_MAX = 240.0


def run_sql(server: DatabaseServer, *statements: str) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@pytest.fixture
def shop(
    project: Callable[[str], Project], mysql80: DatabaseServer, spark_server: SparkConnectServer
) -> Iterator[Project]:
    """The project with the destination inline; its table has two rows."""
    run_sql(
        mysql80,
        f"DROP DATABASE IF EXISTS {DATABASE}",
        f"CREATE DATABASE {DATABASE}",
        f"CREATE TABLE {DATABASE}.orders (id int PRIMARY KEY, total int)",
        f"INSERT INTO {DATABASE}.orders VALUES (1, 10), (2, 20)",
    )
    made = project(DATABASE)
    made.describe(
        {
            "destinations": {
                "shop": {
                    "source": {"user": "root", "port": mysql80.port},
                    "include": f"{DATABASE}\\..*",
                    "tables": {f"{DATABASE}.orders": {"snapshot": "initial"}},
                    "maintenance": {"optimize": ""},
                }
            },
            "settings": {
                "lake": str(made.root / "lake"),
                "engine": {"kind": "remote", "address": f"127.0.0.1:{free_port()}"},
                "spark": {"remote": spark_server.url},
            },
            "translation": {
                "key": "raw/{{ data.table }}",
                "group_name": "raw",
                "owners": ["team:data"],
                "tags": {"tier": "{{ data.database }}"},
                "kinds": ["iceberg"],
            },
        }
    )
    yield made
    (made.root / ".sluice" / "data" / "engine-process.wanted").unlink(missing_ok=True)
    wait_for("the process of the engines has ended", lambda: not is_locked(made.root / ".sluice" / "data" / LOCK_FILE))


def test_dg_lists_the_component_and_checks_the_project(shop: Project) -> None:
    listed = shop.run("dg", "list", "components")
    assert listed.returncode == 0, listed.stderr
    assert "sluice.SluiceComponent" in listed.stdout
    checked = shop.run("dg", "check", "yaml")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    checked = shop.run("dg", "check", "defs")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    found = shop.run("dg", "list", "defs", "--json")
    assert found.returncode == 0, found.stdout + found.stderr
    assets = {asset["asset_key"]: asset for asset in json.loads(found.stdout)["assets"]}
    orders = assets["raw/orders"]
    assert orders["group_name"] == "raw"
    assert orders["owners"] == [{"team": "data"}]
    assert orders["dependency_keys"] == ["Source/shop/component_shop/orders"]
    assert orders["kinds"] == ["iceberg"]
    assert orders["tags"] == [{"key": "tier", "value": DATABASE}]
    assert assets["order_report"]["dependency_keys"] == ["raw/orders"]


@pytest.mark.timeout(600)
def test_dagster_dev_alone_runs_a_downstream_asset_after_a_change(shop: Project, mysql80: DatabaseServer) -> None:
    report, log = shop.root / "report", (shop.root / "dev.log").open("ab")
    dev = subprocess.Popen(
        [str(Path(sys.executable).parent / "dagster"), "dev", "-p", str(free_port())],
        cwd=shop.root,
        env=shop.environment,
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    try:
        read = wait_for("the report has the snapshot", lambda: report.exists() and report.read_text(), RUN_SECONDS_MAX)
        assert read == "2"
        run_sql(mysql80, f"INSERT INTO {DATABASE}.orders VALUES (3, 30)")
        wait_for("the report has the new row", lambda: report.read_text() == "3", RUN_SECONDS_MAX)
        engine = next(
            each for each in ProcessFile(shop.root / ".sluice/data/processes.json").load() if each.name == "engine"
        )
    finally:
        dev.send_signal(signal.SIGINT)
        dev.wait(60)
        log.close()
    (shop.root / ".sluice" / "data" / "engine-process.wanted").unlink()
    assert wait_until_gone(engine.pid, 60), "the engine ends when no tick comes"
