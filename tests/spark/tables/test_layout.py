"""Tests tables that conf/ partitions, clusters or gives a change data feed. New tables are created with this layout, merges keep it, and
existing tables are altered.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.connect.session import SparkSession

from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.spark_jobs.errors import MergeError
from sluice.spark_jobs.targets.layout import Layout
from tests.spark.conftest import Lake
from tests.spark.staged import DELETE, INSERT, UPDATE_AFTER, Changes, Image, Schema

pytestmark = pytest.mark.spark

TABLE = "shop.orders"
ORDERS = Schema({"id": "bigint", "country": "string", "name": "string"}, key=("id",))


@pytest.fixture(scope="module")
def session(spark_server: SparkConnectServer) -> Iterator[SparkSession]:
    made = SparkSession.builder.remote(spark_server.url).create()
    yield made
    made.stop()


def image(operation: int, order_key: int, key: int, country: str = "", name: str = "") -> Image:
    return Image(operation, order_key, {"id": key, "country": country, "name": name})


FIRST = [image(INSERT, 1, 1, "de", "a"), image(INSERT, 2, 2, "fr", "b"), image(INSERT, 3, 3, "de", "c")]
SECOND = [image(UPDATE_AFTER, 17, 1, "fr", "moved"), image(DELETE, 18, 2), image(INSERT, 19, 4, "it", "d")]
ROWS = [(1, "fr", "moved"), (3, "de", "c"), (4, "it", "d")]


def merged(lake: Lake, images: list[Image], layout: Layout) -> str:
    """Merges the images, and returns the way in which they were merged, such as `spark`."""
    return lake.merge({TABLE: [Changes(ORDERS, images)]}, layout=layout)[TABLE].way


def detail(session: SparkSession, lake: Lake) -> dict[str, Any]:
    return session.sql(f"DESCRIBE DETAIL delta.`{lake.target(TABLE).path}`").collect()[0].asDict()


def test_a_new_table_is_partitioned_and_its_rows_move_between_partitions(lake: Lake, session: SparkSession) -> None:
    layout = Layout(partition_by=("Country",))
    assert merged(lake, FIRST, layout) == "spark"
    assert merged(lake, SECOND, layout) == "spark"
    assert detail(session, lake)["partitionColumns"] == ["country"]
    assert lake.rows(TABLE, "id", "country", "name") == ROWS


def test_a_table_is_clustered_when_created_then_changed_then_no_longer(lake: Lake, session: SparkSession) -> None:
    merged(lake, FIRST, Layout(cluster_by=("country",)))
    assert detail(session, lake)["clusteringColumns"] == ["country"]
    merged(lake, SECOND, Layout(cluster_by=("country", "id")))
    assert detail(session, lake)["clusteringColumns"] == ["country", "id"]
    version = lake.log(TABLE).version()
    merged(lake, [image(INSERT, 33, 5)], Layout(cluster_by=("country", "id")))
    assert lake.log(TABLE).version() == version + 1  # The property is not set again.
    merged(lake, [image(DELETE, 49, 5)], Layout())
    assert not detail(session, lake)["clusteringColumns"]
    assert lake.rows(TABLE, "id", "country", "name") == ROWS


def test_an_existing_table_is_clustered_and_gets_a_change_data_feed(lake: Lake, session: SparkSession) -> None:
    lake.way = "auto"
    assert merged(lake, FIRST, Layout()) == "small"
    since = lake.log(TABLE).version() + 1
    assert merged(lake, SECOND, Layout(cluster_by=("name",), change_feed=True)) == "spark"
    assert detail(session, lake)["clusteringColumns"] == ["name"]
    assert lake.rows(TABLE, "id", "country", "name") == ROWS
    begun = next(
        each["version"]
        for each in sorted(lake.log(TABLE).history(), key=lambda each: int(each["version"]))
        if int(each["version"]) >= since and "enableChangeDataFeed" in str(each.get("operationParameters"))
    )
    changes = session.sql(
        f"SELECT id, _change_type FROM table_changes_by_path('{lake.target(TABLE).path}', {begun}) ORDER BY id, _change_type"
    ).collect()
    expected = [(1, "update_postimage"), (1, "update_preimage"), (2, "delete"), (4, "insert")]
    assert [tuple(row) for row in changes] == expected


def test_a_layout_that_cannot_be_is_named(lake: Lake) -> None:
    with pytest.raises(MergeError, match="names land, which is not a column of the table"):
        merged(lake, FIRST, Layout(partition_by=("land",)))
    merged(lake, FIRST, Layout())
    with pytest.raises(MergeError, match="is not partitioned, and conf/ has partition_by country"):
        merged(lake, SECOND, Layout(partition_by=("country",)))
    with pytest.raises(MergeError, match="names land, which is not a column of the table"):
        merged(lake, SECOND, Layout(cluster_by=("land",)))
    merged(lake, SECOND, Layout())
    assert lake.rows(TABLE, "id", "country", "name") == ROWS
