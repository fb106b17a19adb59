"""Tests that every reader reads what Sluice writes with its default settings, also after columns were widened, added and dropped.

All tables of a lake are merged in the same three batches. Each test then reads one table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from pyspark.errors.exceptions.connect import SparkException

from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.spark_jobs.batch.context import BatchContext
from sluice.spark_jobs.batch.run_batch import merge_batch
from sluice.spark_jobs.session import SparkSettings
from sluice.spark_jobs.staged_files.read import read_staged_batch
from sluice.spark_jobs.targets.layout import PLAIN, Layout
from tests.spark.conftest import Lake
from tests.spark.readers.locations import STORES, Location, located
from tests.spark.readers.readers import READERS, SPARK35, Reader
from tests.spark.staged import DELETE, INSERT, UPDATE_AFTER, Changes, Image, Schema, SchemaChange, Segment

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


def merge_story(lake: Lake, tables: Mapping[str, Mapping[str, Any]]) -> None:
    """Inserts, changes and deletes rows of each table before and after a change of its columns. `tables` has the options of each table's
    target.
    """
    first = [image(INSERT, 10 + key, key, n=key, old="o") for key in range(6)]
    changes = [image(UPDATE_AFTER, 21, 1, n=11, old="p"), image(DELETE, 22, 2, n=2, old="o")]
    later = [image(UPDATE_AFTER, 41, 3, n=BIG, new="q"), image(DELETE, 42, 4, n=4, new=None)]
    batches: tuple[list[Segment], ...] = (
        [Changes(BEFORE, first)],
        [Changes(BEFORE, changes)],
        [SchemaChange(31, AFTER, ALTERATIONS), Changes(AFTER, later)],
    )
    targets = {name: lake.target(name, **options) for name, options in tables.items()}
    for segments in batches:
        staged = lake.stage(dict.fromkeys(tables, segments))
        merge_batch(read_staged_batch(staged), targets, lake.spark, BatchContext(storage_options=lake.storage_options))


RIGHT = [(0, "de", 0, None), (1, "at", 11, None), (3, "at", BIG, "q"), (5, "at", 5, None)]


def named(layout: str, *, vectors: bool) -> str:
    return f"shop.{layout}_with{'' if vectors else 'out'}_vectors"


@pytest.fixture(scope="module")
def made(spark_server: SparkConnectServer, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Returns a lake with a table of each layout, with and without deletion vectors."""
    lake = Lake(tmp_path_factory.mktemp("defaults"), SparkSettings(remote=spark_server.url))
    tables = {
        named(name, vectors=vectors): {"layout": layout, "deletion_vectors": vectors}
        for name, layout in LAYOUTS.items()
        for vectors in (True, False)
    }
    merge_story(lake, tables)
    return lake


def require_read(lake: Lake, name: str, there: Location, readers: Mapping[str, Reader]) -> None:
    """Checks that these readers return the rows that are right."""
    assert lake.rows(name, "id", "land", "n", "new") == RIGHT
    names = [field.name for field in lake.log(name).schema().fields]
    indices = [names.index(column) for column in ("id", "land", "n", "new")]
    for reader, read in readers.items():
        found = sorted(tuple(row[at] for at in indices) for row in read(there, name))
        assert found == RIGHT, reader


@pytest.mark.spark
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("vectors", [True, False], ids=["vectors", "no vectors"])
def test_every_reader_reads_what_the_defaults_write(made: Lake, layout: str, *, vectors: bool) -> None:
    readers = reading(READERS, vectors=vectors)
    require_read(made, named(layout, vectors=vectors), Location(f"{made.folder}/lake"), readers)


def reading(readers: Mapping[str, Reader], *, vectors: bool) -> dict[str, Reader]:
    return {name: read for name, read in readers.items() if not (vectors and name == REFUSES_VECTORS)}


@pytest.mark.spark
@pytest.mark.servers
@pytest.mark.spark_version
@pytest.mark.parametrize("layout", LAYOUTS)
def test_spark_35_reads_what_the_defaults_write(made: Lake, layout: str, readers: Mapping[str, Reader]) -> None:
    require_read(made, named(layout, vectors=True), Location(f"{made.folder}/lake"), {SPARK35: readers[SPARK35]})


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
    name = named("partitions", vectors=True)
    merge_story(lake, {name: {"layout": LAYOUTS["partitions"]}})
    found = reading(readers, vectors=True)
    if store == "Azure":
        # Hadoop's client in Spark 4.1 stores the MD5 of a list of blocks as the MD5 of the file (HADOOP-19604).
        with pytest.raises(SparkException, match="while reading file wasb://"):
            found.pop(SPARK35)(there, name)
        assert "integrity check failed" in spark35_server.log.read_text()
    require_read(lake, name, there, found)
