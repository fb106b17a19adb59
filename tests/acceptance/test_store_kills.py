"""Kills Spark's server, a run and the whole stack with SIGKILL while merges write to a store. Afterwards the lake equals MySQL."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.servers.s3 import ACCESS_KEY, SECRET_KEY
from sluice.orchestration.base.failpoints import AFTER_MERGE, AFTER_TAKE, BETWEEN_TABLES
from tests.acceptance.fix_kills import Death, KillBench, running_bench

pytestmark = [pytest.mark.servers, pytest.mark.spark, pytest.mark.store]
DEATHS: dict[str, tuple[Death, ...]] = {
    "s3": (("spark", BETWEEN_TABLES), ("stack", AFTER_MERGE)),
    "google": (("run", BETWEEN_TABLES), ("stack", AFTER_TAKE)),
}
# Store → the fixture of its server, and the variables by which conf/ names the secrets of its options.
STORES = {
    "s3": ("s3_store", {"LAKE_ACCESS": ACCESS_KEY, "LAKE_SECRET": SECRET_KEY}),
    "google": ("fake_gcs", {}),
}


@pytest.fixture
def store_conf(store_name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Returns the settings of sluice.yaml for a lake and staged batches in the store. The variables of its secrets are set."""
    fixture, variables = STORES[store_name]
    store = request.getfixturevalue(fixture)
    options = dict(store.options)
    if store_name == "google":
        variables = {"LAKE_ACCOUNT": options["google_service_account_key"]}
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    names = {value: f"${variable}" for variable, value in variables.items()}
    # The S3 server of the tests refuses checksums of parts.
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
    root = f"{store.root}/{uuid.uuid4().hex[:12]}"
    named = {name: names.get(value, value) for name, value in options.items()}
    return {"lake": f"{root}/lake", "staging": f"{root}/staged", "storage_options": named}


@pytest.fixture
def store_bench(store_conf: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[KillBench]:
    yield from running_bench(tmp_path_factory.mktemp("kills"), store_conf)


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
