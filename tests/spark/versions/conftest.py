"""Runs tests of the merge on other versions of Spark. In this folder, `spark_server` is Spark 3.5, and then Spark 4.0.

Both have the settings for few rows, like the Spark of most tests in tests/spark.
"""

from collections.abc import Iterator

import pytest

from benchmarks.servers.azurite.server import AzuriteServer
from benchmarks.servers.other_spark import SPARK35, SPARK40, OtherSpark
from benchmarks.servers.s3 import S3Server
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.spark_jobs.object_store import spark_environment, spark_settings
from tests.fix_servers import FEW_ROWS


@pytest.fixture(scope="session", params=[SPARK35, SPARK40], ids=lambda spark: spark.version)
def other_spark(request: pytest.FixtureRequest) -> OtherSpark:
    chosen: OtherSpark = request.param
    return chosen


@pytest.fixture(scope="session")
def spark_server(
    other_spark: OtherSpark, tmp_path_factory: pytest.TempPathFactory, s3_server: S3Server, azure_server: AzuriteServer
) -> Iterator[SparkConnectServer]:
    """Starts the server. Spark 4.0 gets the client for Azure of Hadoop 3.4.2, which can use Blob endpoints."""
    stores = ("azure",) if other_spark is SPARK40 else ()
    folder = tmp_path_factory.mktemp(other_spark.group)
    server = other_spark.server(folder, more=FEW_ROWS, stores=stores)
    for store, options in {"s3": s3_server.options, "azure": azure_server.options}.items():
        server.add_settings(spark_settings(store, options), spark_environment(store, options))
    try:
        yield server.start()
    finally:
        server.stop()
