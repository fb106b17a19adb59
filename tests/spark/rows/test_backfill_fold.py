"""Tests the fold of a backfill on staged files. It makes one image per key from several files, with the counts, order keys and key bounds
that a merge uses.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from sluice.batch_manifest.values import ChangesSegment
from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.rows.fold import folded
from sluice.spark_jobs.staged_files.read import read_staged_batch
from tests.spark.staged import DELETE, INSERT, UPDATE_AFTER, Changes, Image, Schema, stage

ITEMS = Schema({"id": "int", "code": "string", "price": "decimal(12,2)"}, key=("id", "code"))


def image(operation: int, order_key: int, number: int, code: str = "a") -> Image:
    return Image(operation, order_key, {"id": number, "code": code, "price": None})


def segments(root: Path, *files: list[Image], schema: Schema = ITEMS) -> list[ChangesSegment]:
    """Returns one segment per file, in the order of the stream."""
    found: list[ChangesSegment] = []
    for number, images in enumerate(files):
        directory = stage(root / str(number), {"shop.items": [Changes(schema, images)]})
        found += read_staged_batch(directory).tables[0].changes
    return found


def test_files_become_one_with_an_image_a_key_backfill(tmp_path: Path) -> None:
    first = [image(INSERT, 10, 1), image(INSERT, 20, 2), image(INSERT, 20, 2, "b"), image(UPDATE_AFTER, 30, 3)]
    then = [image(UPDATE_AFTER, 40, 1), image(DELETE, 50, 2), image(UPDATE_AFTER, 60, 9), image(DELETE, 70, 1)]
    made = folded(
        "shop.items", segments(tmp_path, first, then), tmp_path / "out.parquet", 60, changed_in=((-1, 30),)
    ).segment
    assert made is not None
    rows = pq.read_table(made.file).to_pylist()
    assert [(row["id"], row["code"], row["_sluice_order_key"], row["_sluice_operation"]) for row in rows] == [
        (2, "b", 20, INSERT),
        (3, "a", 30, UPDATE_AFTER),
        (1, "a", 40, UPDATE_AFTER),
        (2, "a", 50, DELETE),
    ]
    assert (made.rows, made.inserts, made.updates, made.deletes) == (4, 1, 2, 1)
    assert (made.first_order_key, made.last_order_key) == (20, 50)
    assert (made.key_min, made.key_max) == ((1, "a"), (3, "b"))
    assert made.unique_keys
    assert not made.again, "each image is a change with its own order key"
    assert made.size_bytes == made.file.stat().st_size
    assert pq.read_schema(made.file) == pq.read_schema(segments(tmp_path / "again", first)[0].file)


@pytest.mark.seeds
def test_keys_that_changed_between_the_intervals_are_not_chosen_backfill(tmp_path: Path) -> None:
    there = segments(
        tmp_path, [image(INSERT, 10, 1), image(INSERT, 20, 2), image(INSERT, 30, 3), image(UPDATE_AFTER, 40, 1)]
    )
    made = folded("shop.items", there, tmp_path / "out.parquet", 60, changed_in=((9, 10), (20, 30))).segment
    assert made is not None
    rows = pq.read_table(made.file).to_pylist()
    assert [(row["id"], row["_sluice_order_key"]) for row in rows] == [(3, 30), (1, 40)]


def test_nothing_that_the_lake_has_makes_no_file_backfill(tmp_path: Path) -> None:
    there = segments(tmp_path, [image(INSERT, 10, 1)])
    assert folded("shop.items", there, tmp_path / "out.parquet", 20, changed_in=((-1, 5),)).segment is None, (
        "after the interval"
    )
    assert folded("shop.items", there, tmp_path / "out.parquet", 5, changed_in=((-1, 20),)).segment is None, (
        "the lake is not there yet"
    )
    assert not (tmp_path / "out.parquet").exists()


def test_files_of_different_columns_are_refused_backfill(tmp_path: Path) -> None:
    other = Schema({"id": "int", "code": "string"}, key=("id", "code"))
    there = segments(tmp_path, [image(INSERT, 10, 1)])
    there += segments(tmp_path / "o", [Image(INSERT, 20, {"id": 1, "code": "a"})], schema=other)
    with pytest.raises(TableError, match="columns of the table changed"):
        folded("shop.items", there, tmp_path / "out.parquet", 30, changed_in=((-1, 30),))
