"""Tests the whole pipeline on a Spark cluster of a master and two workers, with staged batches and lake in S3, and the conf of
docs/deployment.md.

A run is killed between two tables, and a worker with its executor is killed during a batch. The merged tables equal the source.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from benchmarks.servers.s3 import ACCESS_KEY, SECRET_KEY, S3Server
from benchmarks.servers.spark_cluster import SparkCluster
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.spark.server import ServerSettings, SparkConnectServer
from sluice.orchestration.base.ports import MergeOrder
from sluice.orchestration.run.spark_merge import spark_merge
from sluice.spark_jobs.object_store import spark_environment, spark_settings
from tests.config.test_deployment_ha import CONFS
from tests.instance.fix_destination import running
from tests.spark.stores.test_staging_s3 import Destination, prefix, tables
from tests.waiting import wait_for

pytestmark = [pytest.mark.servers, pytest.mark.spark]

__all__ = ["prefix"]
CLUSTER = CONFS[-1]
VARIABLES = {"LAKE_ACCESS_KEY": ACCESS_KEY, "LAKE_SECRET_KEY": SECRET_KEY}


@pytest.fixture
def cluster(tmp_path: Path, s3_store: S3Server) -> Iterator[SparkCluster]:
    made = SparkCluster(tmp_path / "cluster", spark_environment("s3", s3_store.options))
    try:
        yield made.start()
    finally:
        made.kill()


@pytest.fixture
def connect(tmp_path: Path, s3_store: S3Server, cluster: SparkCluster) -> Iterator[SparkConnectServer]:
    """Starts the Connect server, whose tasks run on the cluster."""
    server = SparkConnectServer(
        None, tmp_path / "connect", memory="1g", extras=("s3",), settings=ServerSettings(more=cluster.settings)
    )
    server.add_settings(spark_settings("s3", s3_store.options), spark_environment("s3", s3_store.options))
    try:
        yield server.start()
    finally:
        server.kill()


def page_conf(root: Path, store: S3Server, prefix: str, remote: str) -> str:
    """Returns the conf of the page with the addresses of this machine."""
    given = {
        "/srv/sluice": str(root / "data"),
        "s3://bucket": prefix,
        "http://store:9000": store.endpoint,
        "eu-central-1": store.options["aws_region"],
        "sc://spark:15002": remote,
        "postgresql://sluice:$SLUICE_META_PASSWORD@db/sluice": f"sqlite:///{root}/meta.db",
    }
    text: str = CLUSTER
    for old, new in given.items():
        assert old in text, f"the conf of the page does not say {old}"
        text = text.replace(old, new)
    return text


def run_until_killed(order: MergeOrder, gate: Path) -> None:
    """Starts a run that waits after its first table, until it is killed."""

    def stand(_: object) -> None:
        gate.touch()
        time.sleep(600)

    spark_merge(order, stand)


@pytest.mark.timeout(600)
def test_cluster_s3_what_is_merged_equals_the_source_whatever_is_killed(
    mysql80: DatabaseServer, s3_store: S3Server, cluster: SparkCluster, connect: SparkConnectServer, prefix: str
) -> None:
    root = cluster.folder.parent
    with pytest.MonkeyPatch.context() as patch:
        for name, value in VARIABLES.items():
            patch.setenv(name, value)
        shop = Destination(root, mysql80, s3_store, prefix=prefix, remote=connect.url)
        (shop.captured.conf / "sluice.yaml").write_text(page_conf(root, s3_store, prefix, connect.url))
        settings = yaml.safe_load(CLUSTER)
        assert {"staging", "lake", "spark", "meta"} <= settings.keys()
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
            gate = root / "gate"
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
            cluster.kill_worker(0)
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
    assert SECRET_KEY not in logs
