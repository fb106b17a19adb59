"""Tests that every type of the five servers compares equal to what the stream writes, and that one different value in
any column is found.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from sluice.console.toolchain.database.server import DatabaseServer
from sluice.equality.values import TableResult, Verdict
from tests.equality.shelf import Shelf, dropped
from tests.fidelity.catalogue import Kind
from tests.fidelity.pipeline import SERVERS, Pipeline, images
from tests.fidelity.test_matrix import TYPED, create, inserts, tables

pytestmark = pytest.mark.servers


@dataclasses.dataclass
class Every:
    """Has tables with every type of a server, and the rows that the engine staged of them."""

    shelf: Shelf
    kinds: dict[str, tuple[Kind, ...]]
    staged: dict[str, pa.Table]


@pytest.fixture(scope="module", params=SERVERS)
def every(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Every]:
    server: DatabaseServer = request.getfixturevalue(request.param)
    folder = tmp_path_factory.mktemp("equality")
    shelf, kinds = Shelf(server, folder), tables(request.param)
    shelf.make(*TYPED, *(create(f"{{db}}.{table}", each) for table, each in kinds.items()))
    pipeline = Pipeline.of(server, shelf.database, folder)
    shelf.make(*(statement for table, each in kinds.items() for statement in inserts(f"{{db}}.{table}", each, 1)))
    staged = pipeline.staged()
    rows = {table: dropped(images(staged, table), "_sluice_") for table in kinds}
    for table, each in rows.items():
        shelf.lay(table, each)
    yield Every(shelf, kinds, rows)
    shelf.drop()


def test_every_type_is_equal_to_what_the_stream_made_of_it_equality(every: Every) -> None:
    for found in every.shelf.compare(*every.kinds):
        assert found.verdict is Verdict.EQUAL, found
        assert found.rows == found.lake_rows > 0


def test_another_value_of_any_type_is_found_by_row_and_column_equality(every: Every) -> None:
    """The first row in the lake has the values of the second row. The difference names exactly the columns in which these rows differ."""
    for table, rows in every.staged.items():
        other = rows.slice(1, 1).set_column(0, rows.schema.field(0), rows.column(0).slice(0, 1))
        every.shelf.lay(table, pa.concat_tables([other, rows.slice(1)]))
        found: TableResult = every.shelf.one(table)
        every.shelf.lay(table, rows)
        assert found.verdict is Verdict.DIFFERENT
        assert found.difference_count == 1
        left, right = (_values(rows, row) for row in (0, 1))
        wanted = {name for name, value in left.items() if value != right[name] and name != "id"}
        assert {name for name, _, _ in found.differences[0].columns} == wanted, table
        assert found.differences[0].key == {"id": "1"}


def _values(rows: pa.Table, row: int) -> dict[str, Any]:
    (values,) = rows.slice(row, 1).to_pylist()
    return dict(values)
