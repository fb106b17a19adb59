"""Tests that every reader reads what Sluice writes with its default settings, also after columns were widened, added and dropped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from pyspark.errors.exceptions.connect import SparkException

from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.spark_jobs.targets.layout import PLAIN, Layout
from tests.spark.conftest import Lake
from tests.spark.readers.locations import STORES, Location, located
from tests.spark.readers.readers import READERS, SPARK35, Reader, Rows
from tests.spark.staged import DELETE, INSERT, UPDATE_AFTER, Changes, Image, Schema, SchemaChange, Segment

NAME = "shop.orders"
BEFORE = Schema({"id": "bigint", "land": "string", "n": "int", "old": "string"}, key=("id",))
AFTER = Schema({"id": "bigint", "land": "string", "n": "bigint", "new": "string"}, key=("id",))
BIG = 2**40
# The defaults of `schema_changes`: a wider type is rewritten, and a dropped column is kept.
ALTERATIONS = (
    {"kind": "widen", "column": "n", "new_name": "", "old_type": "int", "new_type": "bigint", "plan": "rewrite"},
    {"kind": "drop", "column": "old", "new_name": "", "plan": "keep"},
)
LAYOUTS = {"plain": PLAIN, "partitions": Layout(partition_by=("land",)), "clusters": Layout(cluster_by=("land",))}
# This reader refuses deletion vectors, which default tables have. With `deletion_vectors: false`, it can read a table.
REFUSES_VECTORS = "deltalake pyarrow"


def image(operation: int, order_key: int, key: int, **values: Any) -> Image:
    return Image(operation, order_key, {"id": key, "land": "at" if key % 2 else "de", **values})


def merge_story(lake: Lake, layout: Layout, **options: Any) -> list[tuple[Any, ...]]:
    """Inserts, changes and deletes rows before and after a change of the columns. Returns the rows that are right."""
    first = [image(INSERT, 10 + key, key, n=key, old="o") for key in range(6)]
    lake.merge({NAME: [Changes(BEFORE, first)]}, layout=layout, **options)
    changes = [image(UPDATE_AFTER, 21, 1, n=11, old="p"), image(DELETE, 22, 2, n=2, old="o")]
    lake.merge({NAME: [Changes(BEFORE, changes)]}, layout=layout, **options)
    later = [image(UPDATE_AFTER, 41, 3, n=BIG, new="q"), image(DELETE, 42, 4, n=4, new=None)]
    altered: list[Segment] = [SchemaChange(31, AFTER, ALTERATIONS), Changes(AFTER, later)]
    lake.merge({NAME: altered}, layout=layout, **options)
    return [(0, "de", 0, None), (1, "at", 11, None), (3, "at", BIG, "q"), (5, "at", 5, None)]


def require_read(lake: Lake, there: Location, readers: Mapping[str, Reader], right: Rows) -> None:
    """Checks that these readers return the rows that are right."""
    assert lake.rows(NAME, "id", "land", "n", "new") == right
    names = [field.name for field in lake.log(NAME).schema().fields]
    indices = [names.index(name) for name in ("id", "land", "n", "new")]
    for reader, read in readers.items():
        found = sorted(tuple(row[at] for at in indices) for row in read(there, NAME))
        assert found == right, reader


@pytest.mark.spark
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("vectors", [True, False], ids=["vectors", "no vectors"])
def test_every_reader_reads_what_the_defaults_write(lake: Lake, layout: str, *, vectors: bool) -> None:
    right = merge_story(lake, LAYOUTS[layout], deletion_vectors=vectors)
    require_read(lake, Location(f"{lake.folder}/lake"), reading(READERS, vectors=vectors), right)


def reading(readers: Mapping[str, Reader], *, vectors: bool) -> dict[str, Reader]:
    return {name: read for name, read in readers.items() if not (vectors and name == REFUSES_VECTORS)}


@pytest.mark.spark
@pytest.mark.servers
@pytest.mark.spark_version
@pytest.mark.parametrize("layout", LAYOUTS)
def test_spark_35_reads_what_the_defaults_write(lake: Lake, layout: str, readers: Mapping[str, Reader]) -> None:
    right = merge_story(lake, LAYOUTS[layout])
    require_read(lake, Location(f"{lake.folder}/lake"), {SPARK35: readers[SPARK35]}, right)


@pytest.mark.spark
@pytest.mark.servers
@pytest.mark.store
@pytest.mark.spark_version
@pytest.mark.parametrize("store", STORES)
def test_store_readers_read_what_the_defaults_write_to_a_store(
    lake: Lake,
    request: pytest.FixtureRequest,
    readers: Mapping[str, Reader],
    spark35_server: SparkConnectServer,
    store: str,
) -> None:
    there = located(request, store)
    lake.root, lake.storage_options = there.root, there.options
    right = merge_story(lake, LAYOUTS["partitions"])
    found = reading(readers, vectors=True)
    if store == "Azure":
        # Hadoop's client in Spark 4.1 stores the MD5 of a list of blocks as the MD5 of the file (HADOOP-19604).
        with pytest.raises(SparkException, match="while reading file wasb://"):
            found.pop(SPARK35)(there, NAME)
        assert "integrity check failed" in spark35_server.log.read_text()
    require_read(lake, there, found, right)
