"""Tests staged batches in an S3 store, from the source to the lake in the store: both ways of merging, cascades, snapshots, an engine that
restarts.
"""

from __future__ import annotations

import dataclasses
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
import yaml

from benchmarks.servers.s3 import ACCESS_KEY, SECRET_KEY, S3Server
from sluice.cdc_engine.contracts import OutstandingBatch
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.object_stores.folder import StoreFolder
from sluice.object_stores.stored_files import StoredFiles
from sluice.orchestration.base.batch_reference import BatchReference
from sluice.orchestration.base.ports import MergeFailedError, MergeOrder
from sluice.orchestration.run.spark_merge import spark_merge
from sluice.spark_jobs.batch import run_batch
from sluice.spark_jobs.snapshot.buffering import BufferedChanges
from sluice.spark_jobs.uploaded_files import UploadSettings
from tests.instance.fix_destination import Captured, running
from tests.spark.conftest import Lake
from tests.spark.snapshot.test_publish_snapshot import ORDERS, Holding, Reading, image
from tests.spark.staged import INSERT, UPDATE_AFTER
from tests.store_conf import StoreConf, store_conf
from tests.waiting import wait_for

pytestmark = [pytest.mark.servers, pytest.mark.spark]


@pytest.fixture
def conf(s3_store: S3Server, monkeypatch: pytest.MonkeyPatch) -> StoreConf:
    return store_conf(s3_store, monkeypatch)


class Destination:
    """A captured database whose staged batches and lake are in the store."""

    def __init__(self, root: Path, server: DatabaseServer, there: StoreConf, *, remote: str) -> None:
        self.captured, self.there = Captured(root, server), there
        conf = {"data_dir": f"{root}/data", **there.settings, "spark": {"remote": remote}}
        (self.captured.conf / "sluice.yaml").write_text(yaml.safe_dump(conf))
        name = self.captured.database
        self.captured.run(
            f"CREATE TABLE {name}.parent (id INT PRIMARY KEY)",
            f"CREATE TABLE {name}.child (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE)",
        )

    def next(self, engine: Engine) -> OutstandingBatch:
        return wait_for("a batch is handed out", lambda: engine.hand_out(0.5), 60)

    def order(self, batch: OutstandingBatch) -> MergeOrder:
        config = self.captured.config
        return MergeOrder(
            config=config,
            destination="shop",
            batch_dir=self.captured.directory / batch.path,
            tables=batch.tables,
            refusal=str,
            stored=config.ledger_location("shop").staged_url(batch.ledger_id, batch.path),
        )

    def merge(self, batch: OutstandingBatch) -> list[str]:
        """Merges a batch with a run that does not see what the engine staged. Returns the ways in which its tables were merged."""
        shutil.rmtree(self.captured.directory / "staging", ignore_errors=True)
        ways: list[str] = []
        spark_merge(
            self.order(batch),
            lambda outcome: ways.append("skipped" if getattr(outcome, "skipped", False) else outcome.way),
        )
        return ways

    def rows(self, table: str, *columns: str) -> list[tuple[int, ...]]:
        path = f"{self.there.url}/lake/{self.captured.database}/{table}"
        log = deltalake.DeltaTable(path, storage_options=dict(self.there.options))
        found = deltalake.QueryBuilder().register("t", log).execute(f"SELECT {', '.join(columns)} FROM t").read_all()
        return sorted(tuple(row.values()) for row in pa.table(found).to_pylist())

    def staged(self) -> set[str]:
        """Returns the names of the files of staged batches in the store, without the files that hosts share, which stay there."""
        there = StoreFolder(f"{self.there.url}/staged", self.there.options).sizes()
        return {name for name in there if not name.startswith("_sluice_shared/")}


@pytest.fixture
def shop(mysql80: DatabaseServer, spark_server: SparkConnectServer, conf: StoreConf, tmp_path: Path) -> Destination:
    return Destination(tmp_path, mysql80, conf, remote=spark_server.url)


def tables(batch: OutstandingBatch) -> Sequence[str]:
    return sorted(name.partition(".")[2] for name in batch.tables)


def test_s3_batches_go_through_the_store_and_leave_nothing_there(
    shop: Destination,
    spark_server: SparkConnectServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for room in ("cdc_engine", "object_stores", "orchestration", "spark_jobs"):
        caplog.set_level(logging.DEBUG, logger=f"sluice.{room}")
    name = shop.captured.database
    with running(shop.captured) as engine:
        shop.captured.run(
            "BEGIN",
            f"INSERT INTO {name}.numbers VALUES (1, 'x'), (2, 'y')",
            f"INSERT INTO {name}.parent VALUES (1), (2)",
            f"INSERT INTO {name}.child VALUES (10, 1), (11, 1), (12, 2)",
            "COMMIT",
        )
        first = shop.next(engine)
        assert tables(first) == ["child", "numbers", "parent"]
        with monkeypatch.context() as patch:
            # Removes the run's local copies, so Spark and its tasks can read the files only from the store.
            patch.setattr(
                run_batch,
                "refuse_unlogged",
                lambda batch, _: [s.file.unlink() for t in batch.tables for s in t.changes],
            )
            assert shop.merge(first) == ["spark"] * 3
        engine.ack(first)
        assert shop.staged() == set()
        shop.captured.run(f"INSERT INTO {name}.numbers VALUES (3, 'z')")
        second = shop.next(engine)
        assert shop.merge(second) == ["small"]
        engine.ack(second)
        shop.captured.run(
            "BEGIN", f"DELETE FROM {name}.parent WHERE id = 1", f"INSERT INTO {name}.numbers VALUES (4, '')", "COMMIT"
        )
        third = shop.next(engine)
    with running(shop.captured) as engine:
        assert shop.next(engine) == third
        assert len(shop.merge(third)) == 3
        assert any("/derived/derived.json" in each for each in shop.staged())
        assert shop.merge(third) == ["skipped"] * 3
        engine.ack(third)
    assert shop.staged() == set()
    assert shop.rows("child", "id") == [(12,)]
    assert shop.rows("parent", "id") == [(2,)]
    assert shop.rows("numbers", "n") == [(1,), (2,), (3,), (4,)]
    reference = BatchReference.of("shop", third)
    files = [file.read_text() for file in shop.captured.directory.glob("*.json")]
    seen = f"{reference.to_config()} {reference.to_tags()} {shop.order(third)} {caplog.text} {spark_server.log.read_text()} {files}"
    assert SECRET_KEY not in seen
    assert ACCESS_KEY not in seen


def test_s3_fault_a_run_whose_store_refuses_it_says_so_without_credentials(
    shop: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(shop.captured) as engine:
        shop.captured.insert([1])
        batch = shop.next(engine)
        monkeypatch.setenv("TEST_AWS_SECRET_ACCESS_KEY", "another-secret")
        with pytest.raises(MergeFailedError, match="could not be downloaded from its store") as raised:
            shop.merge(batch)
    assert "another-secret" not in str(raised.value)


def test_s3_rows_that_were_read_and_buffered_changes_are_uploaded_for_spark(lake: Lake, conf: StoreConf) -> None:
    uploads = UploadSettings(url=f"{conf.url}/_sluice_uploaded/shop", storage_options=conf.options)
    lake.spark = dataclasses.replace(lake.spark, uploads=uploads)
    holds = Holding(
        lake.folder / "held",
        {
            "shop.orders": BufferedChanges(
                files=StoredFiles(folder=lake.folder / "held" / "orders"),
                cascades=StoredFiles(folder=lake.folder / "held" / "cascades"),
                after=-1,
            )
        },
    )
    reading = Reading(lake, "shop.orders", ORDERS, holds)
    reading.chunk(0, [{"id": 1, "value": "read"}, {"id": 2, "value": "read"}])
    assert reading.publish(4).rows == 2
    reading.merge([image(UPDATE_AFTER, 5, 2, "held"), image(INSERT, 6, 3, "held")], 1)
    assert reading.publish(6).rows == 3
    assert lake.rows("shop.orders", "id", "value") == [(1, "read"), (2, "held"), (3, "held")]
    assert StoreFolder(conf.url, conf.options).sizes() == {}
