"""Tests that everything that Spark wrote for a batch is on disk when its merge returns: data, checksums, deletion vectors, commits, and the
folders' names.
"""

from __future__ import annotations

import pytest

from tests.durability.disk import Disk
from tests.spark.conftest import Lake
from tests.spark.staged import INSERT, UPDATE_AFTER, Changes, Image, Schema

pytestmark = pytest.mark.spark

ORDERS = Schema({"id": "bigint", "name": "string"}, key=("id",))


def changes(operation: int, keys: range, start: int) -> Changes:
    return Changes(ORDERS, [Image(operation, start + key, {"id": key, "name": f"at {start}"}) for key in keys])


@pytest.mark.usefixtures("marks_rows")
def test_fault_a_merge_of_spark_is_on_disk_when_it_returns(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.way = "spark"
    disk = Disk(lake.folder, monkeypatch)
    table = lake.folder / "lake" / "shop.orders"
    for batch in (changes(INSERT, range(1, 50), 1), changes(UPDATE_AFTER, range(5, 9), 100)):
        lake.merge({"shop.orders": [batch]})
        files = [each for each in table.rglob("*") if each.is_file()]
        assert [why for each in files for why in disk.loses(each)] == []
    assert [each for each in files if each.name.startswith("deletion_vector")]
    assert [each for each in files if each.name.endswith(".crc")]
