"""Tests that the equality check accepts any column name, also a name that its own statement could use for something else."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from sluice.equality.values import Verdict
from tests.equality import test_equality_rows as rows_of_tables
from tests.equality.shelf import Shelf, changed

pytestmark = pytest.mark.servers

MakeShelf = Callable[..., Shelf]
make_shelf = rows_of_tables.make_shelf
shelf = rows_of_tables.shelf
NAMES = (
    *("order_key", "place", "newest", "rows", "source_hash", "lake_hash", "hash", "sign", "chunk", "count"),
    *("s", "l", "side", "source", "lake", "keys", "reader"),
)


@pytest.mark.parametrize("name", NAMES)
def test_equality_compares_a_column_and_a_key_of_any_name(shelf: Shelf, name: str) -> None:
    shelf.make(
        f"CREATE TABLE {{db}}.k (`{name}` int PRIMARY KEY, v int)",
        f"CREATE TABLE {{db}}.c (id int PRIMARY KEY, `{name}` int)",
        "INSERT INTO {db}.k VALUES (1, 1), (2, 2)",
        "INSERT INTO {db}.c VALUES (1, 1), (2, 2)",
    )
    numbers = pa.array([1, 2], pa.int32())
    key, column = pa.table({name: numbers, "v": numbers}), pa.table({"id": numbers, name: numbers})
    shelf.lay("k", key)
    shelf.lay("c", column)
    assert {each.verdict for each in shelf.compare("k", "c")} == {Verdict.EQUAL}
    shelf.lay("k", changed(key, "v", 1, 7))
    shelf.lay("c", changed(column, name, 1, 7))
    assert [each.columns for each in shelf.one("k").differences] == [(("v", "2", "7"),)]
    assert [each.columns for each in shelf.one("c").differences] == [((name, "2", "7"),)]
    shelf.lay("k", key.slice(1))
    assert [(each.kind, each.key) for each in shelf.one("k").differences] == [("missing", {name: "1"})]


def test_equality_compares_a_table_without_a_key_whose_columns_have_any_name(shelf: Shelf) -> None:
    columns = ", ".join(f"`{name}` int" for name in NAMES)
    values = ", ".join(map(str, range(len(NAMES))))
    shelf.make(f"CREATE TABLE {{db}}.t ({columns})", f"INSERT INTO {{db}}.t VALUES ({values}), ({values})")
    own = {"_sluice_order_key": [5, 5], "_sluice_operation": ["insert", "insert"]}
    rows = pa.table({**{name: pa.array([at] * 2, pa.int32()) for at, name in enumerate(NAMES)}, **own})
    shelf.lay("t", rows)
    assert shelf.one("t").verdict is Verdict.EQUAL
    shelf.lay("t", rows.slice(1))
    assert [(each.kind, each.count) for each in shelf.one("t").differences] == [("missing", 1)]


@pytest.mark.found
def test_equality_ignores_the_leading_zeros_of_a_long_decimal(shelf: Shelf) -> None:
    """Defect 1211: a ZEROFILL column of more than 38 digits differed in each row, because the server prints leading zeros."""
    nines = f"{'9' * 35}.{'9' * 30}"
    shelf.make(
        "CREATE TABLE {db}.d (id int PRIMARY KEY, v decimal(40,2) zerofill, w decimal(65,30) unsigned zerofill, x decimal(65,0))",
        f"INSERT INTO {{db}}.d VALUES (1, 1.5, {nines}, -{'9' * 65}), (2, 0, 0.5, 0), (3, NULL, NULL, NULL)",
    )
    texts = {
        "v": ["1.50", "0.00", None],
        "w": [nines, f"0.5{'0' * 29}", None],
        "x": [f"-{'9' * 65}", "0", None],
    }
    rows = pa.table({"id": pa.array([1, 2, 3], pa.int32()), **texts})
    shelf.lay("d", rows)
    found = shelf.one("d")
    assert found.verdict is Verdict.EQUAL, found
    shelf.lay("d", changed(rows, "v", 0, "1.51"))
    assert [each.columns[0][0] for each in shelf.one("d").differences] == ["v"]
