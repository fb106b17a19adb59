"""Compares Sluice's merge of staged files with a hand-written MERGE of the same Parquet files in the same Spark, for `./sluice bench
merge`.

Sluice and the hand-written MERGE take turns. Each merges into a table of its own, with the same rows. The phases are adjacent keys in new
tables, scattered keys, and adjacent keys again, in the tables that the scattered merges have left. All phases run with and without deletion
vectors.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.merge_batches import DATABASE, DESTINATION, LEDGER_ID, TABLE, StagedFiles
from benchmarks.report import median, show, write_json
from sluice.console.toolchain.setup import set_up
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.spark_jobs.batch.run_batch import merge_batch
from sluice.spark_jobs.session import LakeSession, SparkSettings
from sluice.spark_jobs.staged_files.read import read_staged_batch
from sluice.spark_jobs.table_owner import OWNER_PROPERTY, Owner
from sluice.spark_jobs.targets.report import TableTarget

SIZES = (1_000, 100_000, 1_000_000)
FILES = 16  # The number of files of a new table.
OWNER = Owner(ledger_id=LEDGER_ID, destination=DESTINATION, table=f"{DATABASE}.{TABLE}")
PHASES = (("close", "fresh"), ("anywhere", "fresh"), ("close", "scattered"))
CREATE = """
CREATE TABLE delta.`{path}` (id BIGINT, k INT, c STRING, pad STRING, _sluice_order_key BIGINT, _sluice_commit_time TIMESTAMP,
_sluice_operation STRING) USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = '{vectors}', '{owner_property}' = '{owner}')
"""
FILL = """
INSERT INTO delta.`{path}` SELECT id, CAST(id % 1000 AS INT), sha2(CAST(id AS STRING), 384), sha2(CAST(id AS STRING), 224), 0L,
timestamp'2026-01-01', 'insert' FROM range(0, {rows}, 1, {files})
"""
BARE = """
MERGE INTO delta.`{path}` t USING parquet.`{file}` s ON t.id = s.id AND t.id >= {low} AND t.id <= {high}
WHEN MATCHED AND s._sluice_operation = 4 THEN DELETE
WHEN MATCHED THEN UPDATE SET t.k = s.k, t.c = s.c, t.pad = s.pad, t._sluice_order_key = s._sluice_order_key,
  t._sluice_commit_time = s._sluice_commit_time, t._sluice_operation = 'update'
WHEN NOT MATCHED AND s._sluice_operation <> 4 THEN INSERT (id, k, c, pad, _sluice_order_key, _sluice_commit_time, _sluice_operation)
  VALUES (s.id, s.k, s.c, s.pad, s._sluice_order_key, s._sluice_commit_time, 'insert')
"""


class SparkClock:
    """Measures the seconds that merges spend in the statements by which Spark commits."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._commit = LakeSession.commit

    @contextmanager
    def running(self) -> Iterator[None]:
        clock, plain = self, self._commit

        def timed(session: LakeSession, name: str, statement: str) -> None:
            begun = time.perf_counter()
            plain(session, name, statement)
            clock.seconds += time.perf_counter() - begun

        self.seconds = 0.0
        LakeSession.commit = timed  # type: ignore[method-assign,assignment]
        try:
            yield
        finally:
            LakeSession.commit = plain  # type: ignore[method-assign]


class Bench:
    """A pair of tables, one per contender, with or without deletion vectors."""

    def __init__(
        self, spark: SparkConnectServer, session: Any, folder: Path, *, table_rows: int, vectors: bool
    ) -> None:
        self._settings = SparkSettings(remote=spark.url)
        self._session, self._vectors = session, vectors
        self._staged = StagedFiles(folder / "staged", table_rows)
        self._sluice, self._bare = folder / "sluice", folder / "bare"
        create = CREATE.format(
            path=self._sluice, vectors=str(vectors).lower(), owner_property=OWNER_PROPERTY, owner=OWNER.to_text()
        )
        session.sql(create).collect()
        session.sql(FILL.format(path=self._sluice, rows=table_rows, files=FILES)).collect()
        shutil.copytree(self._sluice, self._bare)

    def cell(self, changes: int, keys: str, state: str, runs: int) -> dict[str, Any]:
        """Returns the medians for one batch size and one spread of keys. The contenders take turns."""
        sluice, bare, outside = [], [], []
        for number in range(runs):
            batch = self._staged.make(changes, keys)
            order = (self._run_sluice, self._run_bare) if number % 2 == 0 else (self._run_bare, self._run_sluice)
            for contender in order:
                seconds, spark_seconds = contender(batch)
                if contender == self._run_sluice:
                    sluice.append(seconds)
                    outside.append(seconds - spark_seconds)
                else:
                    bare.append(seconds)
            shutil.rmtree(batch)
            self._forget_old_files()
        return {
            "deletion_vectors": self._vectors, "keys": keys, "table": state, "changes": changes, "sluice_s": median(sluice),
            "bare_s": median(bare), "ratio": median([a / b for a, b in zip(sluice, bare, strict=True)]), "outside_spark_s": median(outside),
        }  # fmt: skip

    def _forget_old_files(self) -> None:
        """Deletes unreferenced files at once. Without deletion vectors, each merge rewrites the whole table, so the disk would become
        full.
        """
        for path in (self._sluice, self._bare):
            self._session.sql(f"VACUUM delta.`{path}` RETAIN 0 HOURS").collect()

    def _run_sluice(self, batch: Path) -> tuple[float, float]:
        clock, begun = SparkClock(), time.perf_counter()
        target = TableTarget(path=str(self._sluice), deletion_vectors=self._vectors)
        with clock.running():
            merge_batch(read_staged_batch(batch), {OWNER.table: target}, self._settings)
        return time.perf_counter() - begun, clock.seconds

    def _run_bare(self, batch: Path) -> tuple[float, float]:
        manifest = json.loads((batch / "manifest.json").read_text())
        segment = manifest["tables"][0]["segments"][0]
        low, high = segment["key_min"][0], segment["key_max"][0]
        begun = time.perf_counter()
        statement = BARE.format(path=self._bare, file=batch / segment["file"], low=low, high=high)
        self._session.sql(statement).collect()
        return time.perf_counter() - begun, 0.0


def run(json_file: Path | None, *, table_rows: int = 10_000_000, runs: int = 3) -> None:
    """Measures all combinations of batch size, key spread and deletion vectors. Prints and writes the figures after each combination."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as name:
        folder = Path(name)
        spark = SparkConnectServer(set_up([]).delta_jars, folder / "spark", memory="8g").start()
        try:
            session = spark_session(spark.url)
            for vectors in (True, False):
                bench = Bench(spark, session, folder / f"vectors-{vectors}", table_rows=table_rows, vectors=vectors)
                # Spark compiles code at its first use. Without this warm-up, the first contender would be slower.
                bench.cell(SIZES[0], "close", "fresh", 2)
                for keys, state in PHASES:
                    for changes in SIZES if state == "fresh" else SIZES[:1]:
                        rows.append(bench.cell(changes, keys, state, runs))
                        show("merge", rows)
                        write_json(json_file, {"table_rows": table_rows, "runs": runs, "merge": rows})
                shutil.rmtree(folder / f"vectors-{vectors}")
        finally:
            spark.stop()


def spark_session(url: str) -> Any:
    from pyspark.sql.connect.session import SparkSession  # noqa: PLC0415  takes two seconds to import

    session = SparkSession.builder.remote(url).create()
    session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    # A VACUUM lists files with this many tasks. The default is 10 000.
    session.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "4")
    return session
