"""Tests the whole pipeline on a Spark cluster of a master and two workers, with staged batches and lake in each kind of store, and the conf
of docs/deployment.md.

A run is killed between two tables, and a worker with its executor is killed during a batch. The merged tables equal the source.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.servers.spark_cluster import SparkCluster
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.spark.server import ServerSettings, SparkConnectServer
from sluice.orchestration.base.ports import MergeOrder
from sluice.orchestration.run.spark_merge import spark_merge
from sluice.spark_jobs.object_store import spark_environment, spark_settings
from sluice.spark_jobs.session import SparkSettings
from sluice.spark_jobs.small.job import why_not_on_executors
from tests.config.test_deployment_ha import CONFS
from tests.instance.fix_destination import running
from tests.spark.stores.test_staging_s3 import Destination, tables
from tests.store_conf import SECRETS, StoreConf, store_conf
from tests.waiting import wait_for

pytestmark = [pytest.mark.servers, pytest.mark.spark, pytest.mark.store]

STORES = {"s3": "s3_store", "google": "fake_gcs", "azure": "azurite"}  # Store → the fixture of its server.


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, stores_of_spark: Mapping[str, Mapping[str, str]]
) -> Iterator[SparkCluster]:
    """Starts the cluster. Its executors have the credentials of the stores in their environment."""
    environment: dict[str, str] = {}
    for store, options in stores_of_spark.items():
        environment |= spark_environment(store, options)
    made = SparkCluster(tmp_path_factory.mktemp("cluster"), environment)
    try:
        yield made.start()
    finally:
        made.kill()


@pytest.fixture(scope="module")
def connect(
    tmp_path_factory: pytest.TempPathFactory,
    stores_of_spark: Mapping[str, Mapping[str, str]],
    cluster: SparkCluster,
) -> Iterator[SparkConnectServer]:
    """Starts the Connect server, whose tasks run on the cluster."""
    settings, folder = ServerSettings(more=cluster.settings), tmp_path_factory.mktemp("connect")
    server = SparkConnectServer(None, folder, memory="1g", extras=tuple(stores_of_spark), settings=settings)
    for store, options in stores_of_spark.items():
        server.add_settings(spark_settings(store, options), spark_environment(store, options))
    try:
        yield server.start()
    finally:
        server.kill()


@pytest.fixture(params=STORES)
def conf(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> StoreConf:
    return store_conf(request.getfixturevalue(STORES[request.param]), monkeypatch)


def conf_of_page(root: Path, conf: StoreConf, remote: str) -> dict[str, Any]:
    """Returns the conf of docs/deployment.md with the addresses of this machine. Requires that the conf has the same keys as the page.
    The page has the options of S3, so the options of other stores are not compared.
    """
    settings = yaml.safe_load(CONFS[-1])
    ours = {
        "data_dir": f"{root}/data",
        **conf.settings,
        "spark": {"remote": remote},
        "meta": {"kind": "sql", "url": f"sqlite:///{root}/meta.db"},
    }
    assert settings.keys() == ours.keys()
    if conf.url.startswith("s3:"):
        assert settings["storage_options"].keys() == conf.named.keys()
    return ours


def run_until_killed(order: MergeOrder, gate: Path) -> None:
    """Starts a run that waits after its first table, until it is killed."""

    def stand(_: object) -> None:
        gate.touch()
        time.sleep(600)

    spark_merge(order, stand)


@pytest.mark.timeout(600)
def test_store_fault_what_a_cluster_merges_equals_the_source_whatever_is_killed(
    mysql80: DatabaseServer, cluster: SparkCluster, connect: SparkConnectServer, conf: StoreConf, tmp_path: Path
) -> None:
    shop = Destination(tmp_path, mysql80, conf, remote=connect.url)
    (shop.captured.conf / "sluice.yaml").write_text(yaml.safe_dump(conf_of_page(tmp_path, conf, connect.url)))
    name = shop.captured.database
    with running(shop.captured) as engine:
        shop.captured.run(
            "BEGIN",
            f"INSERT INTO {name}.numbers VALUES (1, 'x'), (2, 'y')",
            f"INSERT INTO {name}.parent VALUES (1), (2)",
            f"INSERT INTO {name}.child VALUES (10, 1), (11, 1), (12, 2)",
            "COMMIT",
        )
        batch = shop.next(engine)
        assert tables(batch) == ["child", "numbers", "parent"]
        gate = tmp_path / "gate"
        run = multiprocessing.get_context("spawn").Process(target=run_until_killed, args=(shop.order(batch), gate))
        run.start()
        wait_for("the first table is merged", lambda: gate.exists() or not run.is_alive(), 240)
        assert gate.exists(), f"the run ended with {run.exitcode}"
        assert run.pid is not None
        os.kill(run.pid, signal.SIGKILL)
        run.join()
        assert "skipped" in shop.merge(batch)
        engine.ack(batch)

        shop.captured.run(
            "BEGIN",
            f"DELETE FROM {name}.parent WHERE id = 1",
            f"INSERT INTO {name}.numbers VALUES (3, 'z')",
            f"UPDATE {name}.numbers SET n = 9 WHERE n = 1",
            "COMMIT",
        )
        batch = shop.next(engine)
        wait_for("the master has both workers", lambda: cluster.alive == 2, 120)
        assert why_not_on_executors(SparkSettings(remote=connect.url)) == ""
        cluster.kill_worker()
        ways = shop.merge(batch)
        assert {"small", "spark"} & set(ways)
        engine.ack(batch)
    assert shop.rows("numbers", "n") == [(2,), (3,), (9,)]
    assert shop.rows("parent", "id") == [(2,)]
    assert shop.rows("child", "id") == [(12,)]
    assert shop.staged() == set()
    wait_for("the master misses the worker", lambda: cluster.alive == 1, 120)
    logs = "".join(path.read_text(errors="replace") for path in (*cluster.logs, connect.log))
    assert any(path.name == "stderr" for path in cluster.logs)
    for secret in SECRETS & conf.options.keys():
        assert conf.options[secret] not in logs
    cluster.add_worker()  # for the next test
