"""Tests the installed Sluice in an empty folder: from `init` to `down`, and the demo."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sluice.console.stack.processes import ProcessFile
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.ports import free_port
from tests.package.conftest import Installed

pytestmark = [pytest.mark.package, pytest.mark.servers, pytest.mark.spark]

VARIABLE, SECRET = "PACKAGE_PASSWORD", "a secret"
ALL = "GRANT SELECT, LOCK TABLES, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO package_account@'%'"


@pytest.fixture
def source(mysql80: DatabaseServer) -> str:
    """Returns the URL of a source with one table, and an account for it."""
    with mysql80.connect() as connection, connection.cursor() as cursor:
        cursor.execute("DROP DATABASE IF EXISTS package_shop")
        cursor.execute("CREATE DATABASE package_shop")
        cursor.execute("CREATE TABLE package_shop.orders (id int PRIMARY KEY)")
        cursor.execute("INSERT INTO package_shop.orders VALUES (1), (2)")
        cursor.execute("DROP USER IF EXISTS package_account@'%'")
        cursor.execute("CREATE USER package_account@'%%' IDENTIFIED BY %s", (SECRET,))
        cursor.execute(ALL)
    return f"mysql://package_account@127.0.0.1:{mysql80.port}/package_shop"


@pytest.mark.timeout(600)
def test_from_init_to_down(installed: Installed, source: str, tmp_path: Path) -> None:
    def sluice(*arguments: str) -> str:
        done = installed.command(tmp_path, *arguments, **{VARIABLE: SECRET})
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    sluice("init", source, "--name", "shop", "--password-env", VARIABLE)
    spark = free_port()
    ports = {"webserver": free_port(), "code_server": free_port(), "spark_connect": spark}
    settings = {"ports": ports, "spark": {"remote": f"sc://127.0.0.1:{spark}"}}
    (tmp_path / "conf" / "sluice.yaml").write_text(json.dumps(settings))
    sluice("check")
    try:
        sluice("up")
        found = json.loads(installed.command(tmp_path, "status", "--json", **{VARIABLE: SECRET}).stdout)
        assert found["destinations"]
    finally:
        said = sluice("down")
    assert "0 processes are left" in said
    assert ProcessFile(tmp_path / "data" / "processes.json").load() == []


@pytest.mark.timeout(600)
def test_the_demo_proves_equal_tables(installed: Installed, tmp_path: Path) -> None:
    base = free_port(4)
    words = (
        "demo",
        "--once",
        "--seconds",
        "5",
        "--visits",
        "20000",
        "--port-base",
        str(base),
        "--json",
        "summary.json",
    )
    done = installed.command(tmp_path, *words)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert json.loads((tmp_path / "summary.json").read_text())["equal"]
    assert (tmp_path / ".sluice" / "demo" / "lake" / "shop" / "orders").is_dir()
