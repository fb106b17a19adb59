"""Kills Spark's server, a run and the whole stack with SIGKILL while merges write to stores. Afterwards the lake equals MySQL.

One pipeline uses all kinds of stores, because a pipeline takes longer to start than its processes to be killed and started again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from benchmarks.servers.azurite.server import AzuriteServer
from benchmarks.servers.fake_gcs.server import FakeGcsServer
from benchmarks.servers.s3 import S3Server
from sluice.orchestration.base.failpoints import AFTER_MERGE, AFTER_TAKE, BEFORE_MERGE, BETWEEN_TABLES
from tests.acceptance.fix_kills import DATABASE, Death, KillBench, named, running_bench
from tests.store_conf import store_conf

pytestmark = [pytest.mark.servers, pytest.mark.spark, pytest.mark.store]
CASES: Sequence[Sequence[Death]] = [
    [("spark", BETWEEN_TABLES), ("stack", AFTER_MERGE)],
    [("run", BETWEEN_TABLES), ("stack", AFTER_TAKE)],
    [("spark", BEFORE_MERGE), ("stack", BETWEEN_TABLES)],
]


@pytest.fixture(scope="module")
def store_bench(
    s3_store: S3Server,
    azurite: AzuriteServer,
    fake_gcs: FakeGcsServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[KillBench]:
    """Runs a pipeline whose lake is in S3, with tables in Azure and in Google Cloud Storage. Its staged batches are in Azure."""
    with pytest.MonkeyPatch.context() as patch:
        s3, azure, google = (store_conf(server, patch) for server in (s3_store, azurite, fake_gcs))
        main = {**s3.settings, "staging": azure.settings["staging"]}
        main["storage_options"] = {**s3.named, **azure.named, **google.named}
        paths = {
            f"{DATABASE}.early": {"path": f"{azure.url}/early", "snapshot": "initial", "merge": "spark"},
            f"{DATABASE}.counters": {"path": f"{azure.url}/counters"},
            f"{DATABASE}.moving": {"path": f"{google.url}/moving", "merge": "spark"},
        }
        yield from running_bench(tmp_path_factory.mktemp("kills"), main, tables=paths)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("deaths", CASES, ids=map(named, CASES))
def test_store_nothing_is_lost_or_doubled_when_spark_a_run_or_everything_is_killed(
    store_bench: KillBench, deaths: Sequence[Death]
) -> None:
    store_bench.kill_along(deaths, store_bench.workload.run)
    store_bench.workload.run(1)
    store_bench.settle()
    store_bench.require_equal()
    store_bench.require_versions_never_went_back()
