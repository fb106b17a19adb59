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
