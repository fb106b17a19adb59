"""Tests that an error of one table, and changes of tables during a comparison, do not falsify the results of other tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from sluice.equality.destination import compare_destination
from sluice.equality.values import Extent, Verdict
from tests.equality import test_equality_rows as rows_of_tables
from tests.equality.shelf import Shelf

pytestmark = pytest.mark.servers

make_shelf = rows_of_tables.make_shelf
shelf = rows_of_tables.shelf
ONE = pa.table({"id": pa.array([1], pa.int32())})
TWO = pa.table({"id": pa.array([1, 2], pa.int32())})


def compared(shelf: Shelf, before: dict[str, Callable[[], None]]) -> dict[str, tuple[Verdict, str]]:
    """Compares all tables. Calls the function that `before` has for a table before the table is compared."""

    def say(text: str) -> None:
        for table, act in before.items():
            if text.startswith(f"comparing {shelf.database}.{table} "):
                act()

    found = compare_destination(dataclasses.replace(shelf.requested(), say=say), [], Extent())
    return {each.table.partition(".")[2]: (each.verdict, each.reason) for each in found}


@pytest.mark.found
def test_a_table_that_is_dropped_during_the_comparison_does_not_end_it(shelf: Shelf) -> None:
    """Defect 1229: the comparison ended with an error, and the tables after the dropped one were not compared."""
    for table in ("a", "b", "c"):
        shelf.make(f"CREATE TABLE {{db}}.{table} (id int PRIMARY KEY)", f"INSERT INTO {{db}}.{table} VALUES (1)")
        shelf.lay(table, ONE)
    found = compared(shelf, {"b": lambda: shelf.make("DROP TABLE {db}.b")})
    assert {name: verdict for name, (verdict, _) in found.items()} == {
        "a": Verdict.EQUAL,
        "b": Verdict.REFUSED,
        "c": Verdict.EQUAL,
    }
    assert "may have been altered, renamed or dropped meanwhile: compare again" in found["b"][1]


@pytest.mark.found
def test_an_unreadable_change_log_does_not_make_later_tables_different(shelf: Shelf) -> None:
    """Defect 1230: after an error in a table without a key, later tables were read as of the time of that table."""
    shelf.make(
        "CREATE TABLE {db}.a (id int)", "INSERT INTO {db}.a VALUES (1)", "CREATE TABLE {db}.b (id int PRIMARY KEY)"
    )
    log = ONE.append_column("_sluice_operation", pa.array(["insert"]))
    shelf.lay("a", log)
    for file in Path(shelf.path("a")).glob("*.parquet"):
        file.unlink()

    def insert() -> None:
        shelf.make("INSERT INTO {db}.b VALUES (1), (2)")
        shelf.lay("b", TWO)

    found = compared(shelf, {"b": insert})
    assert {name: verdict for name, (verdict, _) in found.items()} == {"a": Verdict.REFUSED, "b": Verdict.EQUAL}


@pytest.mark.found
def test_a_limit_of_rows_that_the_server_sets_for_every_session_does_not_count(shelf: Shelf) -> None:
    """Defect 1231: with `sql_select_limit` in the server's settings, rows and columns were missing in what Sluice read."""
    shelf.make("CREATE TABLE {db}.a (id int PRIMARY KEY, v int)", "INSERT INTO {db}.a VALUES (1, 1), (2, 2)")
    shelf.lay("a", TWO.append_column("v", pa.array([1, 7], pa.int32())))
    shelf.run("SET GLOBAL sql_select_limit = 1")
    try:
        (found,) = shelf.compare()
    finally:
        shelf.run("SET GLOBAL sql_select_limit = 18446744073709551615")
    assert (found.verdict, found.rows, found.left_out) == (Verdict.DIFFERENT, 2, ())
