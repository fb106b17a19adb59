"""What a merge makes of every kind of change, read back without Spark."""

from __future__ import annotations

from tests.spark.conftest import Lake
from tests.spark.staged import DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE, Changes, Image, Schema

ORDERS = Schema({"id": "bigint", "name": "string"}, key=("id",))


def image(operation: int, order_key: int, key: int, name: str) -> Image:
    return Image(operation, order_key, {"id": key, "name": name})


def test_inserts_updates_and_deletes_of_two_batches(lake: Lake) -> None:
    """And the report counts each."""
    first = [image(INSERT, 1, 1, "a"), image(INSERT, 2, 2, "b"), image(INSERT, 3, 3, "c")]
    created = lake.merge({"shop.orders": [Changes(ORDERS, first)]})["shop.orders"]
    second = [image(UPDATE_AFTER, 4, 1, "A"), image(DELETE, 5, 2, "b"), image(INSERT, 6, 4, "d")]
    changed = lake.merge({"shop.orders": [Changes(ORDERS, second)]})["shop.orders"]
    assert lake.rows("shop.orders", "id", "name", "_sluice_operation", "_sluice_order_key") == [
        (1, "A", "update", 4),
        (3, "c", "insert", 3),
        (4, "d", "insert", 6),
    ]
    assert (created.rows_inserted, created.rows_updated, created.rows_deleted) == (3, 0, 0)
    assert (changed.rows_inserted, changed.rows_updated, changed.rows_deleted) == (1, 1, 1)
    assert (changed.source_rows, changed.start_order_key, changed.end_order_key) == (3, 4, 6)
    assert changed.columns[:2] == (("id", "bigint"), ("name", "string"))
    assert not changed.skipped


def test_two_keys_swapped_in_one_transaction(lake: Lake) -> None:
    lake.merge({"shop.orders": [Changes(ORDERS, [image(INSERT, 1, 1, "a"), image(INSERT, 2, 2, "b")])]})
    swap = [(1, 9, "a"), (2, 1, "b"), (9, 2, "a")]
    images = []
    for number, (old, new, name) in enumerate(swap):
        images += [image(UPDATE_BEFORE, 10 + 2 * number, old, name), image(UPDATE_AFTER, 11 + 2 * number, new, name)]
    lake.merge({"shop.orders": [Changes(ORDERS, images)]})
    assert lake.rows("shop.orders", "id", "name") == [(1, "b"), (2, "a")]
