"""Runs the tests of merges and publications on servers of Spark 3.5 with Delta 3.3, and Spark 4.0 with Delta 4.0."""

from __future__ import annotations

import pytest

from benchmarks.servers.other_spark import SPARK35, OtherSpark
from sluice.spark_jobs.session import open_sessions
from sluice.spark_jobs.side_tables.side_table import SideTable
from sluice.spark_jobs.small.job import OLD_SPARK, why_not_on_executors
from tests.spark.conftest import Lake
from tests.spark.merging import test_merge_semantics as semantics
from tests.spark.merging.test_merge_semantics import Story
from tests.spark.side_tables import test_features_history
from tests.spark.snapshot import test_publish_snapshot as publishing

pytestmark = [pytest.mark.spark, pytest.mark.spark_version]

NOT_HERE = {
    # The test changes a table with deltalake, which adds a feature that Delta 3.3 does not know (`variantType`).
    "test_identity_an_older_image_never_overwrites_a_newer_row",
}
story = semantics.story
history = test_features_history.history
reading = publishing.reading
test_a_row_that_was_deleted_meanwhile = publishing.test_a_row_that_was_deleted_while_a_snapshot_read_does_not_come_back
test_layouts_of_a_publication = publishing.test_a_snapshot_gives_a_table_the_layout_of_conf
test_a_repeated_publication = publishing.test_a_publication_that_is_repeated_or_late_is_dropped_by_its_transaction
globals().update(
    {name: each for name, each in vars(semantics).items() if name.startswith("test_") and name not in NOT_HERE}
)


def test_the_server_is_the_old_one_and_runs_merge_its_small_tables(lake: Lake, other_spark: OtherSpark) -> None:
    """Runs merge small tables themselves, because each session of an old server leaves a Python process on the executors after its end."""
    with open_sessions(lake.spark, 1) as (session,):
        assert session.spark.version == other_spark.version
    assert why_not_on_executors(lake.spark).startswith(OLD_SPARK)


def test_the_old_server_reads_a_history_with_local_times(lake: Lake, history: SideTable) -> None:
    with open_sessions(lake.spark, 1) as (session,):
        (found,) = session.spark.sql(f"SELECT count(*), max(at) FROM delta.`{history.path}`").collect()
    assert tuple(found) == (0, None)


def test_delta_4_merges_into_a_table_with_a_feature_that_delta_3_does_not_know(
    story: Story, other_spark: OtherSpark
) -> None:
    if other_spark is SPARK35:
        pytest.skip("Delta 3.3 does not know the feature variantType, which deltalake adds when it changes a property")
    semantics.test_identity_an_older_image_never_overwrites_a_newer_row(story)
