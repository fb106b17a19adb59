"""Tests that a row whose key is NULL is compared: it may be missing, additional, or have another value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from sluice.equality.values import Verdict
from tests.equality import test_equality_rows as rows_of_tables
from tests.equality.shelf import Shelf, changed

pytestmark = pytest.mark.servers

MakeShelf = Callable[..., Shelf]
make_shelf = rows_of_tables.make_shelf
small_chunks = rows_of_tables.small_chunks


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(
    ("declared", "value", "column"),
    [
        ("int", "n", pa.array([None, *range(1, 400)], pa.int32())),
        ("varchar(30)", "concat('ä', n)", pa.array([None, *(f"ä{n}" for n in range(1, 400))])),
        ("varbinary(30)", "concat(x'ff00', n)", pa.array([None, *(b"\xff\0%d" % n for n in range(1, 400))])),
        ("decimal(10,3)", "n", pa.array([None, *map(float, range(1, 400))]).cast(pa.decimal128(10, 3))),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
@pytest.mark.parametrize("others", [(), ("n",)], ids=["alone", "with another column"])
def test_equality_a_row_whose_key_is_null_is_compared_like_any_other(
    make_shelf: MakeShelf, declared: str, value: str, column: Any, others: tuple[str, ...]
) -> None:
    shelf = make_shelf(tables={"{db}.k": {"key": ["k", *others]}})
    shelf.make(f"CREATE TABLE {{db}}.k (k {declared}, n int, v int)")
    numbers_sql = "WITH RECURSIVE s (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM s WHERE n < 399)"
    shelf.make(f"INSERT INTO {{db}}.k {numbers_sql} SELECT if(n, {value}, NULL), n, n FROM s")
    counted = pa.array(range(400), pa.int32())
    rows = pa.table({"k": column, "n": counted, "v": counted})
    shelf.lay("k", rows)
    assert shelf.one("k").verdict is Verdict.EQUAL
    shelf.lay("k", changed(rows, "v", 0, -1))
    found = shelf.one("k")
    assert [(each.kind, each.key["k"], each.columns) for each in found.differences] == [
        ("value", "NULL", (("v", "0", "-1"),))
    ]
    shelf.lay("k", rows.slice(1))
    found = shelf.one("k")
    assert [(each.kind, each.key["k"]) for each in found.differences] == [("missing", "NULL")]
    assert found.verdict is Verdict.DIFFERENT
    shelf.make("DELETE FROM {db}.k WHERE k IS NULL")
    shelf.lay("k", rows)
    assert [(each.kind, each.key["k"]) for each in shelf.one("k").differences] == [("surplus", "NULL")]


def test_equality_rows_of_the_source_that_share_a_null_key_are_several_rows(make_shelf: MakeShelf) -> None:
    shelf = make_shelf(tables={"{db}.k": {"key": ["k"]}})
    shelf.make("CREATE TABLE {db}.k (k int, v int)", "INSERT INTO {db}.k VALUES (NULL, 1), (NULL, 1), (1, 1)")
    shelf.lay("k", pa.table({"k": pa.array([None, 1], pa.int32()), "v": pa.array([1, 1], pa.int32())}))
    found = shelf.one("k")
    assert (found.verdict, found.difference_count) == (Verdict.DIFFERENT, 1)
