"""Tests the comparison of a table whose key is a text that the source declares with a wrong charset (`charsets` in conf/)."""

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
small_chunks = rows_of_tables.small_chunks


@pytest.mark.found
@pytest.mark.usefixtures("small_chunks")
def test_rows_are_found_by_a_key_with_a_charset_of_conf(make_shelf: MakeShelf) -> None:
    """Defect 1233: chunks and rows were selected by the declared charset, so equal rows were reported as missing in the source."""
    shelf = make_shelf(tables={"{db}.k": {"charsets": {"k": "utf8mb4"}}})
    names = [f"ä{number}" for number in range(400)]
    values = ", ".join(f"(x'{name.encode().hex()}', {number})" for number, name in enumerate(names))
    shelf.make(
        "CREATE TABLE {db}.k (k varchar(30) CHARACTER SET latin1 COLLATE latin1_bin PRIMARY KEY, v int)",
        f"INSERT INTO {{db}}.k VALUES {values}",
    )
    rows = pa.table({"k": names, "v": pa.array(range(400), pa.int32())})
    shelf.lay("k", rows)
    assert shelf.one("k").verdict is Verdict.EQUAL
    found = shelf.one("k", mode="sample", percent=25.0)
    assert (found.verdict, found.chunks_compared) == (Verdict.EQUAL, 1)
    shelf.lay("k", changed(rows, "v", 7, -1))
    found = shelf.one("k")
    assert [(each.kind, each.key["k"], each.columns) for each in found.differences] == [
        ("value", "'ä7'", (("v", "7", "-1"),))
    ]
