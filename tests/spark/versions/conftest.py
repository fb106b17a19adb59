"""Runs tests of the merge on another version of Spark: `spark_server` of this folder is Spark 3.5."""

from collections.abc import Iterator

import pytest

from benchmarks.servers.spark35 import spark35
from sluice.console.toolchain.spark.server import SparkConnectServer


@pytest.fixture(scope="session")
def spark_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkConnectServer]:
    server = spark35(tmp_path_factory.mktemp("spark35"))
    try:
        yield server.start()
    finally:
        server.stop()
