"""Kills Spark's server, a run and the whole stack with SIGKILL while merges write to a store. Afterwards the lake equals MySQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sluice.orchestration.base.failpoints import AFTER_MERGE, AFTER_TAKE, BEFORE_MERGE, BETWEEN_TABLES
from tests.acceptance.fix_kills import Death, KillBench, running_bench
from tests.store_conf import store_conf

pytestmark = [pytest.mark.servers, pytest.mark.spark, pytest.mark.store]
DEATHS: dict[str, tuple[Death, ...]] = {
    "s3": (("spark", BETWEEN_TABLES), ("stack", AFTER_MERGE)),
    "azure": (("spark", BEFORE_MERGE), ("stack", BETWEEN_TABLES)),
    "google": (("run", BETWEEN_TABLES), ("stack", AFTER_TAKE)),
}
STORES = {"s3": "s3_store", "azure": "azurite", "google": "fake_gcs"}  # Store → the fixture of its server.


@pytest.fixture
def store_bench(
    store_name: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[KillBench]:
    """Runs a pipeline whose lake and staged batches are in the store."""
    conf = store_conf(request.getfixturevalue(STORES[store_name]), monkeypatch)
    yield from running_bench(tmp_path_factory.mktemp("kills"), conf.settings)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("store_name", STORES)
def test_store_nothing_is_lost_or_doubled_when_spark_a_run_or_everything_is_killed(
    store_name: str, store_bench: KillBench
) -> None:
    store_bench.kill_along(DEATHS[store_name], store_bench.workload.run)
    store_bench.workload.run(1)
    store_bench.settle()
    store_bench.require_equal()
    store_bench.require_versions_never_went_back()
