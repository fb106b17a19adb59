"""Tests that `sluice sql` prints each value as the lake has it."""

from __future__ import annotations

import json

import pytest

from sluice.console.main import app
from sluice.console.toolchain.errors import SetupError
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


@pytest.mark.found
@pytest.mark.usefixtures("config")
def test_json_has_every_column_and_is_valid_for_every_value() -> None:
    """Defect 1137: with `--json`, NaN made invalid JSON, a date as a MAP's key caused a traceback, and of two columns `id` one was left
    out.
    """

    def printed(query: str) -> object:
        answer = RUNNER.invoke(app, ["sql", query, "--json"])
        assert answer.exit_code == 0, answer.exception
        return json.loads(answer.stdout, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))

    wrong = "SELECT 'nan'::DOUBLE n, ['inf'::FLOAT] i, map([date '2026-01-01'], [1]) d, map([1], ['a']) m, {'a': 1.5::DOUBLE} s"
    row = {"n": "nan", "i": ["inf"], "d": {"2026-01-01": 1}, "m": {"1": "a"}, "s": {"a": 1.5}}
    assert printed(wrong) == [row]
    joined = "SELECT o.id, i.id, 7 AS id_1, i.id FROM shop.orders o JOIN stock.items i ON o.id = i.id WHERE o.id = 2"
    assert printed(joined) == [{"id": 2, "id_2": 2, "id_1": 7, "id_3": 2}]


@pytest.mark.found
@pytest.mark.usefixtures("config")
@pytest.mark.parametrize("query", ["", " ", "/* only a comment */", ";"])
def test_a_query_without_a_statement_is_refused(query: str) -> None:
    """Defect 1137: `sluice sql ""`, as a script with an empty variable calls it, ended with a traceback."""
    answer = RUNNER.invoke(app, ["sql", query])
    assert isinstance(answer.exception, SetupError)
    assert "The query has no statement" in str(answer.exception)
