"""Tests runs on a host that can read neither the engine's folder nor its working directory: they merge changes, read rows of a snapshot,
and buffer changes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.servers.s3 import S3Server
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.states import SnapshotState
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.orchestration.base.batch_reference import BatchReference
from tests.instance.fix_destination import running
from tests.spark.stores.test_staging_s3 import Destination, conf, shop
from tests.waiting import wait_for

pytestmark = [pytest.mark.servers, pytest.mark.spark]

__all__ = ["conf", "shop"]
ROOT = Path(__file__).parents[3]


class Elsewhere:
    """A host for runs, with a conf/ that names no folder of the engine."""

    def __init__(self, root: Path, conf: Path) -> None:
        self.data = root / "data"
        (root / "conf" / "destinations").mkdir(parents=True)
        (root / "work").mkdir()
        said = yaml.safe_load((conf / "sluice.yaml").read_text())
        (root / "conf" / "sluice.yaml").write_text(yaml.safe_dump({**said, "data_dir": str(self.data)}))
        text = (conf / "destinations" / "shop.yaml").read_text()
        (root / "conf" / "destinations" / "shop.yaml").write_text(text)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.stores.run_elsewhere"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=root / "work",
            env={**os.environ, "SLUICE_CONF": str(root / "conf"), "SLUICE_CONF_IN_USE": "", "PYTHONPATH": str(ROOT)},
        )
        self.tables: list[str] = self._said()["tables"]

    def run(self, job: str, **wanted: Any) -> dict[str, Any]:
        given = self._process.stdin
        assert given is not None
        given.write(json.dumps({"job": job, **wanted}).encode() + b"\n")
        given.flush()
        return self._said()

    def _said(self) -> dict[str, Any]:
        output = self._process.stdout
        assert output is not None
        said: dict[str, Any] = json.loads(output.readline())
        return said

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def elsewhere(root: Path, conf: Path) -> Iterator[Elsewhere]:
    host = Elsewhere(root, conf)
    try:
        yield host
    finally:
        host.end()


def merge(host: Elsewhere, shop: Destination, engine: Engine) -> dict[str, Any]:
    batch = shop.next(engine)
    reference = BatchReference.of("shop", batch)
    done = host.run(
        "merge_shop_job",
        config={"ops": {"merge_shop": {"config": reference.to_config()}}},
        tags=reference.to_tags(),
    )
    assert done["done"], done
    engine.ack(batch)
    return done


@pytest.fixture
def apart(shop: Destination, tmp_path: Path) -> Destination:
    """Returns a destination whose ledger is in a database that other hosts can reach."""
    path = shop.captured.conf / "sluice.yaml"
    meta = {"kind": "sql", "url": f"sqlite:///{tmp_path}/meta.db", "session_seconds": 20}
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "meta": meta}))
    shop.captured.describe("snapshot: initial")
    return shop


def test_s3_runs_that_see_neither_the_engines_folder_nor_its_working_directory(
    apart: Destination, tmp_path: Path, mysql80: DatabaseServer, s3_store: S3Server, spark_server: SparkConnectServer
) -> None:
    captured, name = apart.captured, apart.captured.database
    captured.run(
        f"INSERT INTO {name}.numbers VALUES (1, 'before'), (2, 'before')", f"INSERT INTO {name}.parent VALUES (5)"
    )
    records = SnapshotRecords(captured.config.destination_dir("shop"))

    def states() -> set[SnapshotState]:
        return {each.state for each in records.all()}

    with running(captured) as engine:
        wait_for("the engine knows its tables", lambda: len(states()) > 0)
        with elsewhere(tmp_path / "there", captured.conf) as host:
            assert host.tables == ["child", "numbers", "parent"]
            captured.run(
                f"INSERT INTO {name}.numbers VALUES (3, 'held')", f"UPDATE {name}.numbers SET n = 9 WHERE n = 2"
            )
            assert host.run("snapshot_shop_job")["done"]
            captured.run(f"INSERT INTO {name}.numbers VALUES (4, 'held')", f"INSERT INTO {name}.parent VALUES (6)")
            captured.wait_until_read(engine)
            assert set(merge(host, apart, engine)["held"]) >= {"numbers"}
            wait_for(
                "all is published",
                lambda: host.run("snapshot_shop_job")["done"] and states() == {SnapshotState.PUBLISHED},
            )
            assert apart.rows("numbers", "n") == [(1,), (3,), (4,), (9,)]
            assert apart.rows("parent", "id") == [(5,), (6,)]

            captured.run(
                "BEGIN", f"DELETE FROM {name}.numbers WHERE n = 1", f"INSERT INTO {name}.child VALUES (7, 5)", "COMMIT"
            )
            captured.wait_until_read(engine)
            assert not merge(host, apart, engine)["held"]
            assert apart.rows("numbers", "n") == [(3,), (4,), (9,)]

            taken = host.run("merge_shop_job", assets=[["shop", name, "numbers"]])
            assert taken["done"], taken
            captured.run(f"INSERT INTO {name}.numbers VALUES (10, 'held')")
            assert host.run("snapshot_shop_job")["done"]
            captured.wait_until_read(engine)
            merge(host, apart, engine)
            wait_for(
                "it is published",
                lambda: host.run("snapshot_shop_job")["done"] and states() == {SnapshotState.PUBLISHED},
            )
            assert apart.rows("numbers", "n") == [(3,), (4,), (9,), (10,)]
            past = {"destination": "shop", "from_time": "2020-01-01T00:00:00Z"}
            refused = host.run("operate_on_rows", config={"ops": {"rows": {"config": past}}})
            assert "cannot see the engine's folder" in refused["why"]
    assert not (captured.directory / "snapshots").exists(), "nothing of it is on the engine's host"
    left = {each for each in apart.staged() if not each.startswith("_sluice_shared/")}
    assert not left
