"""Tests a lake in a store with servers of Spark 3.5 and 4.0: merges in both ways, a publication, and a commit that another writer
replaces.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterator

import pytest

from benchmarks.servers.azurite.server import AzuriteServer
from benchmarks.servers.other_spark import SPARK35, OtherSpark
from sluice.console.toolchain.cache import open_cache
from sluice.console.toolchain.spark.home import spark_home
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.spark_jobs.fence import BY_HAND
from sluice.spark_jobs.object_store import spark_environment, spark_settings
from sluice.spark_jobs.snapshot.publish import publish_snapshot
from tests.fix_servers import FEW_ROWS
from tests.spark.conftest import Lake
from tests.spark.snapshot.test_publish_snapshot import ORDERS, Holding, Reading
from tests.spark.staged import INSERT, Changes, Image
from tests.spark.stores import test_lake_s3 as in_s3

pytestmark = [pytest.mark.spark, pytest.mark.spark_version, pytest.mark.servers, pytest.mark.store]

STORES = {"s3": "s3_store", "azure": "azurite"}
prefix, s3_lake = in_s3.prefix, in_s3.s3_lake
test_a_commit_that_was_written_over = in_s3.test_s3_a_commit_that_was_written_over_is_no_success


@pytest.fixture(scope="module")
def spark35_for_azure(
    tmp_path_factory: pytest.TempPathFactory, azure_server: AzuriteServer
) -> Iterator[SparkConnectServer]:
    """Starts a Spark 3.5 with the client for Azure of Hadoop 3.4.2, which can use Blob endpoints. This client needs other jars of its
    version, which must come before those of Spark.
    """
    jars = (spark_home(open_cache()) / "jars").glob("hadoop-client-*.jar")
    settings = {**FEW_ROWS, "spark.driver.extraClassPath": ":".join(map(str, jars))}
    server = SPARK35.server(tmp_path_factory.mktemp("spark35-azure"), more=settings, stores=("azure",))
    server.add_settings(spark_settings("azure", azure_server.options), spark_environment("azure", azure_server.options))
    try:
        yield server.start()
    finally:
        server.stop()


@pytest.fixture(params=STORES)
def store_lake(request: pytest.FixtureRequest, other_spark: OtherSpark, lake: Lake) -> Lake:
    store = request.getfixturevalue(STORES[request.param])
    lake.root, lake.storage_options = f"{store.root}/{uuid.uuid4().hex[:12]}", store.options
    if request.param == "azure" and other_spark is SPARK35:
        server: SparkConnectServer = request.getfixturevalue("spark35_for_azure")
        lake.spark = dataclasses.replace(lake.spark, remote=server.url)
    return lake


def test_both_ways_of_a_merge(store_lake: Lake) -> None:
    in_s3.require_both_ways(store_lake)


def test_a_snapshot_is_published_twice_in_a_store_and_merges_continue(store_lake: Lake) -> None:
    """The second publication replaces the rows of the first one."""
    store_lake.way = "spark"
    for number in (1, 2):
        reading = Reading(store_lake, "shop.orders", ORDERS, Holding(store_lake.folder / f"held-{number}"))
        reading.holds.begin(reading.name)
        reading.chunk(1, [{"id": key, "value": f"{number}"} for key in range(3)])
        given = reading.publication(100 * number)
        published = publish_snapshot(
            given, store_lake.spark, fence=BY_HAND, records=reading.records, storage_options=store_lake.storage_options
        )
        assert published.rows == 3
        assert store_lake.rows("shop.orders", "id", "value") == [(key, f"{number}") for key in range(3)]
    late = Image(INSERT, 2**40, {"id": 9, "value": "late"})
    store_lake.merge({"shop.orders": [Changes(ORDERS, [late])]})
    assert (9, "late") in store_lake.rows("shop.orders", "id", "value")
