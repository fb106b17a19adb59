"""Tests that an error of one table, and changes of tables during a comparison, do not falsify the results of other tables."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sluice.equality.values import Verdict
from tests.equality import test_equality_rows as rows_of_tables
from tests.equality.shelf import Shelf

pytestmark = pytest.mark.servers

make_shelf = rows_of_tables.make_shelf
shelf = rows_of_tables.shelf
TWO = pa.table({"id": pa.array([1, 2], pa.int32())})


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
