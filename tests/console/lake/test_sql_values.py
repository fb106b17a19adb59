"""Tests that `sluice sql` prints each value as the lake has it."""

from __future__ import annotations

import json

import pytest

from sluice.console.main import app
from tests.console.lake import test_sql
from tests.console.lake.test_sql import RUNNER

config = test_sql.config


@pytest.mark.found
@pytest.mark.usefixtures("config")
@pytest.mark.parametrize("value", ["[draft] offer", "[/b] end", ":warning: hot", "\\\\[x]"])
def test_a_table_shows_brackets_and_colons_of_values(value: str) -> None:
    """Defect 1135: the table of `sluice sql` left out "[draft]", replaced ":warning:", and ended with a traceback at "[/b]"."""
    answer = RUNNER.invoke(app, ["sql", f"SELECT '{value}' AS \"{value}\""])
    assert answer.exit_code == 0, answer.exception
    assert answer.stdout.count(value) == 2, "as the column's name, and as its value"


@pytest.mark.found
@pytest.mark.usefixtures("config")
def test_lake_show_prints_json() -> None:
    """Defect 1136: `lake show --json` ended with a traceback if a table existed, because a set of columns cannot become JSON."""
    answer = RUNNER.invoke(app, ["lake", "show", "a", "--json"])
    assert answer.exit_code == 0, answer.exception
    tables = {each["name"]: each for each in json.loads(answer.stdout)}
    assert tables["shop.orders"]["version"] == 0
    assert tables["shop.orders"]["columns"] == ["at", "id", "price", "raw", "status"]
