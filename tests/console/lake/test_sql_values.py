"""Tests that `sluice sql` prints each value as the lake has it."""

from __future__ import annotations

import json
from pathlib import Path

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


@pytest.mark.found
@pytest.mark.usefixtures("config")
@pytest.mark.parametrize(
    "query",
    [
        "COPY (SELECT 1) TO 'FILE'",
        "SELECT 1; COPY (SELECT 1) TO 'FILE'",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO 'FILE'",
        "/* */ EXPLAIN (ANALYZE, FORMAT json) COPY (PIVOT (SELECT 1 a) ON a) TO 'FILE'",
        "COPY (PIVOT (SELECT 1 a) ON a) TO 'FILE'",
        "ATTACH 'FILE' AS other",
        "EXPORT DATABASE 'FILE'",
        "CREATE TABLE mine AS SELECT 1",
        "INSTALL spatial",
        "SET temp_directory = 'FILE'",
        "PRAGMA profile_output = 'FILE'",
    ],
)
def test_a_statement_that_does_not_only_read_is_refused(query: str, tmp_path: Path) -> None:
    """Defect 1152: `sluice sql` wrote a file for COPY, EXPORT and ATTACH, although it says that it only reads the lake."""
    file = tmp_path / "file"
    answer = RUNNER.invoke(app, ["sql", query.replace("FILE", str(file))])
    assert isinstance(answer.exception, SetupError)
    assert "only reads the lake" in str(answer.exception)
    assert not file.exists()


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize(
    "query",
    [
        "SHOW ALL TABLES",
        "DESCRIBE shop.orders",
        "SUMMARIZE shop.orders",
        "EXPLAIN ANALYZE SELECT * FROM shop.orders",
        "PIVOT shop.orders ON status USING count(*)",
        "WITH a AS (FROM shop.orders) SELECT * FROM a",
        "PRAGMA show_tables",
        "SELECT 1; VALUES (2)",
    ],
)
def test_every_form_of_a_question_is_answered(query: str) -> None:
    answer = RUNNER.invoke(app, ["sql", query, "--json"])
    assert answer.exit_code == 0, answer.exception
    assert json.loads(answer.stdout)


@pytest.mark.found
@pytest.mark.usefixtures("config")
@pytest.mark.parametrize("name", ["tables", "question", "duckdb", "options"])
def test_a_name_that_no_table_has_is_no_variable_of_the_command(name: str) -> None:
    """Defect 1152: `sluice sql "SELECT * FROM tables"` named a line of Sluice's source code, instead of the tables that there are."""
    answer = RUNNER.invoke(app, ["sql", f"SELECT * FROM {name}"])
    assert isinstance(answer.exception, SetupError)
    assert "The tables are: shop.order, shop.orders" in str(answer.exception)


@pytest.mark.found
@pytest.mark.usefixtures("config")
def test_a_query_with_bytes_that_are_no_text_is_refused() -> None:
    """Defect 1155: a query with bytes that the locale cannot decode ended with a TypeError."""
    answer = RUNNER.invoke(app, ["sql", "SELECT '\udcfc'"])
    assert isinstance(answer.exception, SetupError)
    assert "use a UTF-8 locale" in str(answer.exception)


@pytest.mark.found
@pytest.mark.usefixtures("config")
@pytest.mark.parametrize("form", ["--json", "--csv"])
def test_an_error_in_a_late_row_is_one_message(form: str) -> None:
    """Defect 1237: if DuckDB failed after the first rows, for example because of a text that is no number, `sluice sql` ended with a
    traceback.
    """
    late = "SELECT CAST(if(i = 499999, 'x', '1') AS INTEGER) AS n FROM range(500000) t(i)"
    answer = RUNNER.invoke(app, ["sql", late, form])
    assert isinstance(answer.exception, SetupError)
    assert "Could not convert string 'x' to INT32" in str(answer.exception)
    assert "DuckDB could not run the query" in str(answer.exception)
