"""Implements `./sluice bench scaling`: merges one table on a standalone Spark cluster with one, two and four executor cores.

Core counts that the machine does not have are left out. Each core is a worker with one executor; each core count uses the same kind of
staged files and a new copy of the table. All processes, including the Connect server, share one machine. Therefore merges scale at least
as well on a cluster of several machines.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.merge import CREATE, FILES, FILL, OWNER
from benchmarks.merge_batches import StagedFiles
from benchmarks.report import median, show, write_json
from benchmarks.servers.spark_cluster import SparkCluster
from sluice.console.toolchain.setup import set_up
from sluice.console.toolchain.spark.server import ServerSettings, SparkConnectServer
from sluice.spark_jobs.batch.run_batch import merge_batch
from sluice.spark_jobs.session import SparkSettings
from sluice.spark_jobs.table_owner import OWNER_PROPERTY
from sluice.spark_jobs.targets.report import TableTarget

CORES = (1, 2, 4)
SIZES = (10_000, 300_000)


def run(json_file: Path | None, *, table_rows: int = 3_000_000, runs: int = 3) -> None:
    """Measures all combinations, and writes the JSON after each number of cores."""
    rows: list[dict[str, Any]] = []
    for cores in (each for each in CORES if each <= (os.cpu_count() or 1)):
        with tempfile.TemporaryDirectory(prefix="sluice-bench-") as name:
            rows += _of(cores, Path(name), table_rows, runs)
        for row in rows:
            alone = next(each["merge_s"] for each in rows if each["changes"] == row["changes"])
            row["faster_than_one"] = round(alone / row["merge_s"], 2)
        show("merges by executor cores", rows)
        write_json(json_file, {"table_rows": table_rows, "runs": runs, "scaling": rows})


def _of(cores: int, folder: Path, table_rows: int, runs: int) -> list[dict[str, Any]]:
    cluster = SparkCluster(folder / "cluster", {}, workers=cores).start()
    spark = SparkConnectServer(
        set_up([]).delta_jars, folder / "connect", memory="2g", settings=ServerSettings(more=cluster.settings)
    )
    try:
        spark.start()
        path = folder / "table"
        _fill(spark.url, path, table_rows)
        staged = StagedFiles(folder / "staged", table_rows)
        for _ in range(2):  # A warm-up, because Spark compiles code at its first use.
            _seconds(spark.url, path, staged, SIZES[0])
        return [
            {
                "cores": cores,
                "changes": size,
                "merge_s": median([_seconds(spark.url, path, staged, size) for _ in range(runs)]),
            }
            for size in SIZES
        ]
    finally:
        spark.kill()
        cluster.kill()


def _fill(url: str, path: Path, rows: int) -> None:
    from pyspark.sql.connect.session import SparkSession  # noqa: PLC0415  takes two seconds to import

    session = SparkSession.builder.remote(url).create()
    try:
        owner = OWNER.to_text()
        session.sql(CREATE.format(path=path, vectors="true", owner_property=OWNER_PROPERTY, owner=owner)).collect()
        session.sql(FILL.format(path=path, rows=rows, files=FILES)).collect()
    finally:
        session.stop()


def _seconds(url: str, path: Path, staged: StagedFiles, changes: int) -> float:
    """Merges scattered keys with Spark's MERGE and returns the seconds."""
    batch = staged.make(changes, "anywhere")
    target = TableTarget(path=str(path), merge="spark")
    begun = time.perf_counter()
    merge_batch(batch, {OWNER.table: target}, SparkSettings(remote=url))
    seconds = time.perf_counter() - begun
    shutil.rmtree(batch)
    return seconds
