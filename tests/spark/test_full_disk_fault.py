"""Tests a full disk of the lake: it stops no table, and the same batch continues once there is space."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sluice.cdc_engine.destination_files import LakeTables
from sluice.cdc_engine.errors import MetaError
from sluice.spark_jobs.errors import MergeError
from tests.instance.faults.test_bad_input import SmallDisk
from tests.spark.conftest import Lake
from tests.spark.staged import INSERT, UPDATE_AFTER, Changes, Image, Schema

pytestmark = pytest.mark.spark

ORDERS = Schema({"id": "bigint", "name": "string"}, key=("id",))
NAME = "shop.orders"


@pytest.fixture
def disk(lake: Lake) -> Iterator[SmallDisk]:
    made = SmallDisk(lake.folder / "lake")
    yield made
    made.unmount()


def changes(operation: int, start: int) -> Changes:
    return Changes(ORDERS, [Image(operation, start + key, {"id": key, "name": f"at {start}"}) for key in range(1, 9)])


def test_fault_a_full_disk_under_the_lake_stops_no_table(lake: Lake, disk: SmallDisk) -> None:
    lake.merge({NAME: [changes(INSERT, 1)]})
    batch = lake.stage({NAME: [changes(UPDATE_AFTER, 100)]})
    disk.fill()
    with pytest.raises(MergeError) as refused:
        lake.merge_staged(batch, [NAME])
    assert refused.value.errors == (), f"no reason of the table's own: {refused.value}"
    disk.free()
    lake.merge_staged(batch, [NAME])
    assert lake.rows(NAME, "id", "name") == [(key, "at 100") for key in range(1, 9)]


def test_fault_a_full_disk_under_the_record_of_tables_keeps_the_old_one(lake: Lake, disk: SmallDisk) -> None:
    LakeTables(disk.folder).keep({NAME: ("id", 3)})
    disk.fill()
    with pytest.raises(MetaError, match="No space left"):
        LakeTables(disk.folder).keep({NAME: ("id", 4)})
    disk.free()
    assert LakeTables(disk.folder).get(NAME) == ("id", 3)
