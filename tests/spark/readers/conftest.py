"""Provides a Spark 3.5 without Sluice as one of the readers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from pyspark.sql.connect.session import SparkSession

from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.spark_jobs.old_spark import fill_old_field
from tests.spark.readers.locations import Location
from tests.spark.readers.readers import READERS, SPARK35, Reader, Rows


@pytest.fixture(scope="module")
def readers(spark35_server: SparkConnectServer) -> Iterator[Mapping[str, Reader]]:
    """Returns all readers, also Spark 3.5."""
    session = SparkSession.builder.remote(spark35_server.url).create()
    fill_old_field(session.client)

    def by_spark35(there: Location, path: str) -> Rows:
        return [tuple(row) for row in session.sql(f"SELECT * FROM delta.`{there.for_spark35(path)}`").collect()]

    yield {**READERS, SPARK35: by_spark35}
    session.stop()
