"""Tests that the lake equals the replay of the stream if the ways of merging a table alternate between batches.

`test_fold_equals_replay` does the same for each way alone. This test uses its model.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.spark_jobs.session import SparkSettings
from tests.spark.conftest import Lake
from tests.spark.merging.test_fold_equals_replay import STREAMS, compare, deliveries, merge_all, replay

pytestmark = pytest.mark.spark

DIVISIONS = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=4, max_size=5)
WAYS = st.lists(
    st.fixed_dictionaries({f"shop.{name}": st.sampled_from(["spark", "small"]) for name in ("hard", "soft", "log")}),
    min_size=6,
    max_size=6,
)


# An example consists of several Spark merges. So hypothesis does not simplify a failing example, which would take minutes.
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.reuse, Phase.generate])
@given(streams=STREAMS, divisions=DIVISIONS, ways=WAYS)
@pytest.mark.timeout(600)
def test_histories_of_tables_that_change_their_way_equal_the_replay_of_the_stream(
    spark_server: SparkConnectServer, tmp_path_factory: pytest.TempPathFactory, streams: Any, divisions: Any, ways: Any
) -> None:
    models = replay(streams)
    lake = Lake(tmp_path_factory.mktemp("ways"), SparkSettings(remote=spark_server.url))
    transactions = [transaction for model in models for transaction in model.transactions]
    batches = deliveries(transactions, divisions)
    for number, images in enumerate(batches):
        merge_all(lake, number, images, ways[number])
    if batches:
        compare(lake, models, transactions)
