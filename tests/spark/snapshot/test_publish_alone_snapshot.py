"""Tests a snapshot of a table without a current-state table: the history is compared with the rows that were read, and the change log gets
these rows.
"""

from __future__ import annotations

from typing import Any

import deltalake
import pyarrow as pa
import pytest

from tests.spark.conftest import Lake
from tests.spark.snapshot.test_publish_snapshot import ORDERS, Holding, Reading, image
from tests.spark.staged import DELETE, INSERT, UPDATE_AFTER, Changes, Image

pytestmark = pytest.mark.spark

NAME = "shop.orders"


@pytest.fixture
def alone(lake: Lake) -> tuple[Reading, dict[str, Any]]:
    path = lake.path(NAME)
    wanted = {"current_state": False, "change_log": f"{path}__log", "history": f"{path}__history"}
    return Reading(lake, NAME, ORDERS, Holding(lake.folder / "held")), wanted


def take(reading: Reading, number: int, wanted: dict[str, Any], *images: Image) -> None:
    reading.take(Changes(ORDERS, images, log=images), number, **wanted)


def requested(path: str, columns: str, order: str) -> list[tuple[Any, ...]]:
    found = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(path))
    return [
        tuple(each.values())
        for each in pa.table(found.execute(f"SELECT {columns} FROM t ORDER BY {order}").read_all()).to_pylist()
    ]


def test_history_and_log_without_a_current_state_table_have_the_rows_of_a_snapshot(
    alone: tuple[Reading, dict[str, Any]],
) -> None:
    reading, wanted = alone
    take(reading, 1, wanted, image(INSERT, 100, 1, "a"), image(INSERT, 100, 9, "gone unseen"))
    reading.holds.begin(NAME, 100)
    take(reading, 2, wanted, image(UPDATE_AFTER, 200, 1, "held"), image(DELETE, 208, 3, "read"))
    reading.chunk(1, [{"id": 1, "value": "a"}, {"id": 2, "value": "read"}, {"id": 3, "value": "read"}])
    for _ in range(2):  # This is the state after a crash before the publication was recorded.
        published = reading.publish(208, since=96, **wanted)
    assert (published.rows, published.label) == (3, 208)
    reading.holds.open.clear()
    take(reading, 3, wanted, image(UPDATE_AFTER, 300, 2, "after"))
    columns = "id, value, _sluice_from_order_key, _sluice_to_order_key, is_current"
    assert requested(wanted["history"], columns, "id, _sluice_from_order_key") == [
        (1, "a", 100, 200, False),
        (1, "held", 200, None, True),
        (2, "read", 208, 300, False),
        (2, "after", 300, None, True),
        (9, "gone unseen", 100, 208, False),
    ]
    reported = requested(
        wanted["change_log"], """operation, order_key, "row", after['id']""", """order_key, "row", after['id']"""
    )
    assert reported == [
        ("read", 96, None, 1),
        ("read", 96, None, 2),
        ("read", 96, None, 3),
        ("insert", 100, 1, 1),
        ("insert", 100, 2, 9),
        ("update", 200, 1, 1),
        ("read", 208, 0, None),
        ("delete", 208, 1, None),
        ("update", 300, 1, 2),
    ]
    assert not reading.lake.folder.joinpath("lake", NAME).exists()
    versions = {kind: record.version for (_, kind), record in reading.records.side_records.items()}
    assert versions == {kind: deltalake.DeltaTable(f"{reading.lake.path(NAME)}__{kind}").version() for kind in versions}
