"""Tests that Spark appends a batch if the files' statistics prove that all of its keys are new, and merges changes that may match a row of
the table.
"""

from __future__ import annotations

import pytest

from tests.spark.conftest import Lake
from tests.spark.staged import DELETE, INSERT, UPDATE_AFTER, Changes, Image, Schema

pytestmark = pytest.mark.spark

ORDERS = Schema({"id": "bigint", "name": "string"}, key=("id",))
HARD, SOFT = "shop.hard", "shop.soft"


def image(operation: int, order_key: int, key: int, name: str) -> Image:
    return Image(operation, order_key, {"id": key, "name": name})


def test_keys_that_no_file_can_have_are_appended_and_others_merged(lake: Lake) -> None:
    lake.way = "spark"
    batches = [
        [image(INSERT, 16, 1, "a"), image(INSERT, 16, 3, "c")],
        [
            image(INSERT, 32, 10, "x"),
            image(UPDATE_AFTER, 48, 10, "X"),
            image(INSERT, 48, 11, "y"),
            image(DELETE, 64, 11, "y"),
        ],
        [image(INSERT, 80, 2, "between")],
    ]
    done = []
    for images in batches:
        lake.merge({HARD: [Changes(ORDERS, images)]})
        done.append(lake.merge({SOFT: [Changes(ORDERS, images)]}, deletes="soft")[SOFT])
    operations = [[each["operation"] for each in lake.log(name).history(3)] for name in (HARD, SOFT)]
    assert operations == [["MERGE", "WRITE", "WRITE"]] * 2
    assert lake.rows(HARD, "id", "name") == [(1, "a"), (2, "between"), (3, "c"), (10, "X")]
    assert lake.rows(SOFT, "id", "_sluice_deleted")[-2:] == [(10, False), (11, True)]
    assert [(each.files_scanned, each.files_pruned, each.rows_inserted) for each in done] == [
        (0, 0, 2),
        (0, 1, 2),
        (1, 1, 1),
    ]
