"""Tests that `status` and `check` warn about a pattern of `include`, or a table or column with settings, that matches nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sluice.cdc_engine.config import load_config
from sluice.cdc_engine.contracts import Column, TableVersion
from sluice.cdc_engine.instance.discovery import SourceSchema
from sluice.cdc_engine.table_meta.table_list.writing import write_tables
from sluice.console.check import check_include, check_keyless
from sluice.console.main import app
from sluice.console.status.include_check import include_warning, unmatched_warnings
from sluice.console.toolchain.database.server import DatabaseServer
from tests.console.conftest import RUNNER, SECRET, Installation
from tests.console.test_status import everything_runs, running_engine


def captured(directory: Path, *names: str) -> None:
    write_tables(directory, [TableVersion(database="shop", table=name, columns=(), key=("id",)) for name in names])


def included(installation: Installation, port: int, include: str, **more: Any) -> Path:
    source = {"port": port, "user": "root", "password": "$SLUICE_TEST_PASSWORD"}
    installation.write("destinations/shop.yaml", {"source": source, "include": include, **more})
    return installation.data / "engine" / "shop"


@pytest.mark.found
def test_status_warns_of_an_include_that_matches_nothing(installation: Installation) -> None:
    """Defect 12: `status` was green with an `include` that matches nothing."""
    directory = included(installation, 1, r"shpo\..*")
    everything_runs(installation)
    running_engine(directory)
    assert RUNNER.invoke(app, ["status"]).stdout.splitlines()[-1] == "no problems", (
        "no engine has written its tables yet"
    )
    captured(directory)
    answer = RUNNER.invoke(app, ["status"])
    assert answer.exit_code == 0, "a warning"
    assert "matches no table of the source, so nothing is captured" in " ".join(answer.stdout.split())
    assert answer.stdout.splitlines()[-1] == "no problems; 1 warning(s)"
    report = json.loads(RUNNER.invoke(app, ["status", "--json"]).stdout)
    assert report["ok"]
    assert len(report["warnings"]) == 1
    captured(directory, "orders")
    included(installation, 1, r"shop\..*")
    assert RUNNER.invoke(app, ["status"]).stdout.splitlines()[-1] == "no problems"


@pytest.mark.found
@pytest.mark.servers
def test_check_warns_of_an_include_that_matches_nothing_on_the_server(
    installation: Installation, mysql80: DatabaseServer
) -> None:
    """Defect 12: `check` was green with an `include` that matches nothing."""
    with mysql80.connect() as connection, connection.cursor() as cursor:
        for statement in (
            "CREATE DATABASE IF NOT EXISTS include_12",
            "CREATE TABLE IF NOT EXISTS include_12.t (id INT)",
        ):
            cursor.execute(statement)
        cursor.execute("CREATE USER IF NOT EXISTS include12@'%%' IDENTIFIED BY %s", (SECRET,))
        cursor.execute("GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO include12@'%'")
    source = {"port": mysql80.port, "user": "include12", "password": "$SLUICE_TEST_PASSWORD"}
    for include, warned in ((r"include_12\.t", False), (r"include_12\.nothing", True), (r"include_12\.t,x\..*", True)):
        installation.write("destinations/shop.yaml", {"source": source, "include": include})
        warnings = check_include(SourceSchema(load_config(installation.conf).destinations["shop"])).warnings
        assert bool(warnings) == warned, warnings
    assert warnings[0].startswith(r"'x\\..*' in include of shop matches no table of the source: correct include in ")


@pytest.mark.parametrize(
    ("include", "exclude", "words"),
    [
        (r"shop\..*", "", ""),
        (r"shop\.orders,shop\.items", "", ""),
        (r"shop\.orders, shop\.items", "", "A space next to a comma is part of a pattern"),
        (r"shop\.orders,a\.b,c\.d", "", r"'a\\.b', 'c\\.d' in include of shop match no table"),
        (r"shop\.orders,shop\.t{1,2}", "", r"'shop\\.t{1,2}'"),
        (r"SHOP\.ORDERS", "", ""),
        (r"shop\.users", r"shop\.users", "(not counting tables that exclude removes)"),
    ],
)
def test_each_pattern_that_matches_nothing_is_named(
    installation: Installation, include: str, exclude: str, words: str
) -> None:
    included(installation, 1, include, exclude=exclude)
    found = include_warning(load_config(installation.conf).destinations["shop"], ["shop.orders", "shop.items"])
    assert (words in found) if words else not found


ORDERS = TableVersion(
    database="shop",
    table="Orders",
    columns=tuple(Column(name=name, type_code=3) for name in ("id", "Note")),
    key=("id",),
)


@pytest.mark.found
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tables": {"shop.Orders": {"deletes": "soft"}}, "column_exclude": "SHOP.orders:note"}, ()),
        ({"tables": {"shop.orderz": {"masks": {"note": "null"}}}}, ("shop.orderz in tables of shop is not captured",)),
        ({"tables": {"shop.orders": {"deletes": "soft"}}}, ("The captured table is called shop.Orders.",)),
        ({"column_exclude": "shop.order:note"}, ("shop.order in column_exclude of shop is not captured",)),
        ({"column_exclude": "shop.orders:nite/note/x"}, ("shop.Orders:nite/x in column_exclude of shop",)),
        ({"column_include": "shop.orders:id,shop.a:b"}, ("shop.a in column_include of shop",)),
        ({"include": r"shop\.Orders,shop\.b", "tables": {"a.b": {}}}, (r"'shop\\.b' in include", "a.b in tables")),
    ],
)
def test_settings_of_a_table_or_column_that_is_not_captured_are_a_warning(
    installation: Installation, settings: dict[str, Any], words: tuple[str, ...]
) -> None:
    """A defect like 12: `check` was green although a name in `tables` or in a column filter was mistyped. Values that these settings
    should hide came to the lake.
    """
    included(installation, 1, **{"include": r"shop\..*", **settings})
    found = unmatched_warnings(load_config(installation.conf).destinations["shop"], [ORDERS])
    assert len(found) == len(words)
    for sentence, expected in zip(found, words, strict=True):
        assert expected in sentence
        assert "conf/destinations/shop.yaml" in sentence
    assert len(unmatched_warnings(load_config(installation.conf).destinations["shop"], [])) == 1, (
        "nothing is captured yet"
    )


@pytest.mark.found
def test_what_could_not_be_checked_has_no_green_mark(installation: Installation) -> None:
    """Defect 29: a check that could not read the source was shown as passed."""
    included(installation, 1, r"shop\..*")
    destination = load_config(installation.conf).destinations["shop"]
    schema = SourceSchema(destination)
    for finding in (check_include(schema), check_keyless(schema)):
        assert finding.warnings == (
            "not checked, because the source could not be read: correct the problems of the source that `sluice check` reports",
        )
