"""Runs the tests of this folder on a Spark with the product's settings."""

import pytest

from sluice.console.toolchain.spark.server import SparkConnectServer


@pytest.fixture(scope="session")
def spark_server(product_spark_server: SparkConnectServer) -> SparkConnectServer:
    return product_spark_server
