"""Tests the output of `dg` for a user's project with Sluice's component. `tests/package/test_component.py` runs one with `dg dev`."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.ports import free_port
from tests.component.conftest import Project

pytestmark = [pytest.mark.component, pytest.mark.servers]

DATABASE = "component_shop"


def run_sql(server: DatabaseServer, *statements: str) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@pytest.fixture
def shop(project: Callable[[str], Project], mysql80: DatabaseServer) -> Project:
    """Returns the project with the destination inline. Its table has two rows."""
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
    return made


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
