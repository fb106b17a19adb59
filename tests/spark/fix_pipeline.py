"""Provides a destination with a real engine, server and Spark, for tests of backfills, repairs and other operations that a test starts
itself.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
import yaml

from sluice.cdc_engine import destination_files
from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.consistent_snapshot import read_consistent_snapshot
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.orchestration.base.lake_settings import spark_settings
from sluice.orchestration.base.ports import MergeOrder, Ports
from sluice.orchestration.run.rows.backfill import Done, run_backfill
from sluice.orchestration.run.rows.operation import RowsRun
from sluice.orchestration.run.rows.request import BackfillRequest, RowsListener
from sluice.orchestration.run.spark_merge import spark_merge
from sluice.spark_jobs.fence import BY_HAND
from sluice.spark_jobs.session import open_sessions
from tests.instance.fix_destination import Captured
from tests.instance.test_start_time_backfill import insert_at
from tests.waiting import wait_for

SECOND_US = 1_000_000
RUNS = itertools.count(1)


class Pipeline:
    """A destination with an engine, whose runs the test starts."""

    def __init__(self, root: Path, server: DatabaseServer, spark: SparkConnectServer, **options: Any) -> None:
        self.captured = Captured(root, server)
        conf = {"data_dir": f"{root}/data", "lake": f"{root}/lake", "spark": {"remote": spark.url}}
        (self.captured.conf / "sluice.yaml").write_text(yaml.safe_dump(conf))
        self.name = f"{self.captured.database}.numbers"
        if options:
            self.captured.describe(f"tables: {{{self.name}: {json.dumps(options)}}}")
        # Other tests may have written binlog with future times. After this statement, that binlog is in an earlier file.
        self.captured.run("FLUSH BINARY LOGS")
        self.began = int(time.time())
        self.base = self.began + 1000

    @property
    def config(self) -> SluiceConfig:
        return self.captured.config

    @property
    def path(self) -> str:
        return self.config.table_path("shop", self.captured.database, "numbers")

    def insert(self, number: int, seconds: int) -> None:
        insert_at(self.captured, number, self.base + seconds)

    def change(self, *statements: str) -> None:
        self.captured.run(*(f"{each}" for each in statements))

    def merge(self, engine: Engine) -> None:
        """Merges everything that the source has now."""
        marker = 1000 + next(RUNS)
        self.captured.insert([marker])

        wait_for("all is merged", lambda: marker in self.merge_next(engine, f"run-{marker}"), 180)

    def merge_next(self, engine: Engine, run: str = "") -> list[int]:
        """Merges the next batch under the run lock, if there is one soon. Returns the numbers in it."""
        batch = engine.hand_out(0.5)
        if batch is None:
            return []
        found = self.captured.staged(batch)
        order = MergeOrder(
            config=self.config,
            destination="shop",
            batch_dir=self.captured.directory / batch.path,
            tables=batch.tables,
            run=run,
            refusal=str,
        )
        with destination_files.run_lock(self.captured.directory, 60):
            spark_merge(order, lambda _: None)
        engine.ack(batch)
        return found

    def by_another_hand(self, *statements: str) -> None:
        with open_sessions(spark_settings(self.config, "shop"), 1, BY_HAND) as sessions:
            for statement in statements:
                sessions[0].spark.sql(statement)

    def rows(self, path: str = "") -> dict[int, str]:
        """Returns the filler of each number. Rows that `merge` wrote, and rows that are marked as deleted, are left out."""
        log = deltalake.DeltaTable(path or self.path)
        soft = "_sluice_deleted" in log.schema().to_arrow().names
        return self._rows(log, "NOT coalesce(_sluice_deleted, false)" if soft else "true")

    def marked(self) -> dict[int, str]:
        """Returns the filler of each number whose row is marked as deleted."""
        return self._rows(deltalake.DeltaTable(self.path), "_sluice_deleted")

    def is_in_newest_snapshot(self) -> bool:
        """Returns whether the newest consistent snapshot of the tables has the table's newest version."""
        version = read_consistent_snapshot(self.config.lake, "shop").tables[self.name].version
        return version == deltalake.DeltaTable(self.path).version()

    def open_versions(self) -> dict[int, str]:
        """Returns the filler of each number in the current versions of the history."""
        return self._rows(deltalake.DeltaTable(f"{self.path}__history"), "is_current")

    def _rows(self, log: deltalake.DeltaTable, condition: str) -> dict[int, str]:
        statement = f"SELECT n, filler FROM t WHERE {condition}"
        found = deltalake.QueryBuilder().register("t", log).execute(statement).read_all()
        return {row["n"]: row["filler"] for row in pa.table(found).to_pylist() if row["n"] < 1000}

    def backfill(self, begin: int, end: int | None = None, tables: tuple[str, ...] = ()) -> Done:
        to_us = None if end is None else (self.base + end) * SECOND_US
        request = BackfillRequest(
            destination="shop", from_us=(self.base + begin) * SECOND_US, to_us=to_us, tables=tables
        )
        ports = Ports(host=lambda: None, files=lambda: destination_files, merge=spark_merge)  # type: ignore[arg-type,return-value]
        with pytest.MonkeyPatch.context() as patch:
            now = time.time_ns
            patch.setattr(time, "time_ns", lambda: now() + 10**13)  # The rows have future times.
            return run_backfill(by_hand(ports, self.config), request)


def by_hand(ports: Ports, config: SluiceConfig, say: Callable[[str], None] = lambda _: None) -> RowsRun:
    """Runs an operation on rows of `shop`."""
    return RowsRun(ports=ports, config=config, destination="shop", listener=RowsListener(say=say), run="by hand")


def killed_at(gate: Path, command: list[str], environment: dict[str, str]) -> None:
    """Starts the command, and kills its process with SIGKILL when it reaches the gate."""
    reached = gate.with_suffix(".reached")
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as run:
        try:
            wait_for(f"{gate.name} is reached", lambda: reached.exists() or run.poll() is not None, 120)
            assert reached.exists(), run.communicate()[0].decode()
        finally:
            run.kill()
            gate.unlink()
