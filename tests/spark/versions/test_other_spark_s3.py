"""Tests a lake in S3 with servers of Spark 3.5 and 4.0: merges in both ways, a publication, and a commit that another writer replaces."""

from __future__ import annotations

import pytest

from sluice.spark_jobs.fence import BY_HAND
from sluice.spark_jobs.snapshot.publish import publish_snapshot
from tests.spark.conftest import Lake
from tests.spark.snapshot.test_publish_snapshot import ORDERS, Holding, Reading
from tests.spark.staged import INSERT, Changes, Image
from tests.spark.stores import test_lake_s3 as in_s3

pytestmark = [pytest.mark.spark, pytest.mark.spark_version, pytest.mark.servers, pytest.mark.store]

prefix, s3_lake = in_s3.prefix, in_s3.s3_lake
test_both_ways_of_a_merge = in_s3.test_s3_both_ways_merge_one_table_alternately
test_a_commit_that_was_written_over = in_s3.test_s3_a_commit_that_was_written_over_is_no_success


def test_a_snapshot_is_published_twice_in_s3_and_merges_continue(s3_lake: Lake) -> None:
    """The second publication replaces the rows of the first one."""
    s3_lake.way = "spark"
    for number in (1, 2):
        reading = Reading(s3_lake, "shop.orders", ORDERS, Holding(s3_lake.folder / f"held-{number}"))
        reading.holds.begin(reading.name)
        reading.chunk(1, [{"id": key, "value": f"{number}"} for key in range(3)])
        given = reading.publication(100 * number)
        published = publish_snapshot(
            given, s3_lake.spark, fence=BY_HAND, records=reading.records, storage_options=s3_lake.storage_options
        )
        assert published.rows == 3
        assert s3_lake.rows("shop.orders", "id", "value") == [(key, f"{number}") for key in range(3)]
    late = Image(INSERT, 2**40, {"id": 9, "value": "late"})
    s3_lake.merge({"shop.orders": [Changes(ORDERS, [late])]})
    assert (9, "late") in s3_lake.rows("shop.orders", "id", "value")
