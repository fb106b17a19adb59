"""Tests snapshots while images lack columns (binlog_row_image MINIMAL). The buffered images are completed from the rows that the snapshot
read. If that is not possible, the snapshot reads all rows again.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from sluice.spark_jobs.snapshot.buffering import RESTARTS_MAX
from sluice.spark_jobs.snapshot.publication import ColumnsDifferError
from tests.spark.conftest import Lake
from tests.spark.snapshot.test_publish_snapshot import Holding, Reading
from tests.spark.staged import DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE, Changes, Image, Schema

pytestmark = pytest.mark.spark

ORDERS = Schema({"id": "int", "a": "string", "b": "int", "c": "string"}, key=("id",))
KEYS, CHUNKS, STEPS = 60, 6, 500
Row = dict[str, Any]


@pytest.fixture
def reading(lake: Lake) -> Reading:
    """Starts a snapshot of shop.orders, with nothing buffered yet."""
    holds = Holding(lake.folder / "held")
    holds.begin("shop.orders")
    return Reading(lake, "shop.orders", ORDERS, holds)


class Source:
    """Changes rows at random, and provides the row images that the source's binlog would have. The image of an update has the key and the
    columns that the statement sets.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311
        self.rows = {key: self._row(key) for key in self.random.sample(range(KEYS), 40)}
        self.order_key = 100

    def _value(self, name: str) -> Any:
        return self.random.choice([None, self.random.randrange(99)] if name == "b" else [None, "", "x", "y", "zz"])

    def _row(self, key: int) -> Row:
        return {"id": key, **{name: self._value(name) for name in "abc"}}

    def change(self) -> list[Image]:
        """Executes one random statement, usually an update, and returns its row images. Returns none if the statement matches no row."""
        self.order_key += 1
        key, other = self.random.sample(range(KEYS), 2)
        kind = self.random.choice(["update"] * 5 + ["insert", "delete", "move", "replace"])
        there = key in self.rows
        if kind in {"delete", "replace"} and there:
            del self.rows[key]
            gone = [Image(DELETE, self.order_key, {"id": key})]
            return gone if kind == "delete" else [*gone, *self._insert(key)]
        if kind == "insert" and not there:
            return self._insert(key)
        if kind == "move" and there and other not in self.rows:
            self.rows[other] = {**self.rows.pop(key), "id": other}
            return [Image(UPDATE_BEFORE, self.order_key, {"id": key}), self._image(UPDATE_AFTER, self.rows[other])]
        if not there:
            return []
        changed = {name: self._value(name) for name in self.random.sample("abc", self.random.randrange(1, 3))}
        self.rows[key] |= changed
        return [self._image(UPDATE_AFTER, {"id": key, **changed})]

    def _insert(self, key: int) -> list[Image]:
        self.rows[key] = self._row(key)
        return [self._image(INSERT, self.rows[key])]

    def _image(self, operation: int, values: Row) -> Image:
        return Image(operation, self.order_key, dict(values))


@pytest.mark.parametrize("deletes", ["hard", "soft"])
def test_a_snapshot_of_rows_whose_images_lack_columns_equals_the_source_fidelity(
    reading: Reading, deletes: str
) -> None:
    source = Source(seed=7)
    read_at = {chunk: source.random.randrange(STEPS) for chunk in range(CHUNKS)}
    images: list[Image] = []
    for step in range(STEPS):
        for chunk in [each for each, moment in read_at.items() if moment == step]:
            reading.chunk(chunk, [row for key, row in sorted(source.rows.items()) if key % CHUNKS == chunk])
        images += source.change()
        if images and source.random.random() < 0.05:
            _take(reading, images, step, deletes)
            images = []
    if images:
        _take(reading, images, STEPS, deletes)
    reading.publish(source.order_key, deletes=deletes)
    where = ("_sluice_deleted",) if deletes == "soft" else ()
    found = [row[:4] for row in reading.lake.rows("shop.orders", *ORDERS.columns, *where) if not any(row[4:])]
    assert sorted(found, key=lambda row: row[0]) == [tuple(row.values()) for _, row in sorted(source.rows.items())]


def _take(reading: Reading, images: list[Image], number: int, deletes: str) -> None:
    """Buffers images as one segment. Only a segment in which an image lacks columns says for each image which columns it has."""
    lacking = any(set(each.values) != set(ORDERS.columns) for each in images if each.operation != DELETE)
    reading.take(Changes(ORDERS, images, partial=lacking), number, deletes=deletes)


def test_rows_without_all_columns_make_a_snapshot_read_again_fidelity(reading: Reading) -> None:
    reading.chunk(1, [{"id": 1, "a": "an earlier row", "b": 1, "c": "of that key"}])
    images = [Image(DELETE, 100, {"id": 1}), Image(INSERT, 101, {"id": 1, "a": "x"})]
    reading.take(Changes(ORDERS, images, partial=True), 1)
    with pytest.raises(ColumnsDifferError, match="1 rows were inserted or updated during the snapshot"):
        reading.publish(101)
    reading.take(Changes(ORDERS, [Image(UPDATE_AFTER, 102, {"id": 2, "b": 5})], partial=True), 2)
    with pytest.raises(ColumnsDifferError, match="2 rows"):  # These are updates whose rows were not read.
        reading.publish(102)


def test_key_changes_without_all_columns_make_a_snapshot_read_again_and_fail_in_the_end_fidelity(
    reading: Reading,
) -> None:
    for number in range(1, RESTARTS_MAX + 1):
        moved = [Image(UPDATE_BEFORE, 100 * number, {"id": 1}), Image(UPDATE_AFTER, 100 * number, {"id": 2})]
        reading.take(Changes(ORDERS, moved, partial=True, moves=1), number)
        assert reading.holds.open["shop.orders"].after == 100 * number
    assert not reading.holds.failed
    reading.chunk(1, [{"id": 2, "a": "read", "b": 1, "c": None}])
    reading.take(Changes(ORDERS, [Image(UPDATE_AFTER, 900, {"id": 2, "c": "held"})], partial=True), 20)
    reading.publish(900)
    assert reading.lake.rows("shop.orders", *ORDERS.columns) == [(2, "read", 1, "held")]
    with pytest.raises(Exception, match="binlog_row_image=FULL on the source until the table is published"):
        reading.take(Changes(ORDERS, [Image(UPDATE_AFTER, 950, {"id": 3})], partial=True, moves=1), 21)
    assert "shop.orders" in reading.holds.failed
