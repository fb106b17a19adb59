"""Merges one table on a standalone Spark cluster with one, two and four executor cores, for `./sluice bench scaling`.

Each core has one worker with one executor. The driver, the master and the benchmark use only the first core. So the executors share no core
with other processes, as if they ran on other machines. For comparison, everything runs on the first core in `one core`. The processor time
of the driver and of the executors shows what a larger cluster would gain.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil

from benchmarks.merge import CREATE, FILES, FILL, OWNER
from benchmarks.merge_batches import StagedFiles
from benchmarks.report import median, show, write_json
from benchmarks.servers.spark_cluster import SparkCluster
from sluice.console.toolchain.setup import set_up
from sluice.console.toolchain.spark.server import ServerSettings, SparkConnectServer
from sluice.spark_jobs.batch.run_batch import merge_batch
from sluice.spark_jobs.session import SparkSettings
from sluice.spark_jobs.staged_files.read import read_staged_batch
from sluice.spark_jobs.table_owner import OWNER_PROPERTY
from sluice.spark_jobs.targets.report import TableTarget

CORES = (1, 2, 4)
SIZES = (10_000, 300_000)
# The number of merges before the measurement. After only two merges, the driver still spends four to six processor seconds per merge on
# compiling.
WARM_UPS = 12


@dataclasses.dataclass(frozen=True, kw_only=True)
class Placement:
    """Names the core of each executor, and the cores of the driver and all other processes."""

    name: str
    driver: tuple[int, ...]
    executors: tuple[int, ...]


def placements(cores: Iterable[int]) -> list[Placement]:
    """Returns the placements that are possible with these cores. With a single core, only the placement that shares it is possible."""
    first, *others = sorted(cores)
    apart = [
        Placement(name="own cores", driver=(first,), executors=tuple(others[:count]))
        for count in CORES
        if count <= len(others)
    ]
    return [Placement(name="one core", driver=(first,), executors=(first,)), *apart]


def run(json_file: Path | None, *, table_rows: int = 3_000_000, runs: int = 3) -> None:
    """Measures all combinations, and writes the JSON after each placement."""
    rows: list[dict[str, Any]] = []
    for placement in placements(os.sched_getaffinity(0)):
        with tempfile.TemporaryDirectory(prefix="sluice-bench-") as name, on_cores(placement.driver):
            rows += _of(placement, Path(name), table_rows, runs)
        for row in rows:
            alone = next(each["merge_s"] for each in rows if each["changes"] == row["changes"])
            row["faster_than_one_core"] = round(alone / row["merge_s"], 2)
        show("merges by executor cores", rows)
        write_json(json_file, {"table_rows": table_rows, "runs": runs, "scaling": rows})


@contextlib.contextmanager
def on_cores(cores: Collection[int]) -> Iterator[None]:
    """Restricts this thread and the processes that it starts to some cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _of(placement: Placement, folder: Path, table_rows: int, runs: int) -> list[dict[str, Any]]:
    cluster = SparkCluster(folder / "cluster", {}, workers=len(placement.executors), cores=placement.executors).start()
    spark = SparkConnectServer(
        set_up([]).delta_jars, folder / "connect", memory="2g", settings=ServerSettings(more=cluster.settings)
    )
    try:
        spark.start()
        merges = _Merges(spark, cluster, folder / "table", StagedFiles(folder / "staged", table_rows))
        merges.fill(table_rows)
        for _ in range(WARM_UPS):
            merges.measure(SIZES[0])
        return [
            {
                "placement": placement.name,
                "executors": len(placement.executors),
                "changes": size,
                **_medians([merges.measure(size) for _ in range(runs)]),
            }
            for size in SIZES
        ]
    finally:
        spark.kill()
        cluster.kill()


def _medians(measured: list[dict[str, float]]) -> dict[str, float]:
    return {name: median([each[name] for each in measured]) for name in measured[0]}


class _Merges:
    """Merges batches with scattered keys into one table by Spark's MERGE."""

    def __init__(self, spark: SparkConnectServer, cluster: SparkCluster, path: Path, staged: StagedFiles) -> None:
        self._spark, self._cluster, self._path, self._staged = spark, cluster, path, staged

    def fill(self, rows: int) -> None:
        from pyspark.sql.connect.session import SparkSession  # noqa: PLC0415  takes two seconds to import

        path, owner = self._path, OWNER.to_text()
        session = SparkSession.builder.remote(self._spark.url).create()
        try:
            session.sql(CREATE.format(path=path, vectors="true", owner_property=OWNER_PROPERTY, owner=owner)).collect()
            session.sql(FILL.format(path=path, rows=rows, files=FILES)).collect()
        finally:
            session.stop()

    def measure(self, changes: int) -> dict[str, float]:
        """Merges one batch. Returns its seconds, and the processor seconds of the driver and of the executors."""
        batch = self._staged.make(changes, "anywhere")
        target = TableTarget(path=str(self._path), merge="spark")
        driver, executors = _cpu_seconds([self._spark.pid]), _cpu_seconds(self._cluster.worker_pids)
        begun = time.perf_counter()
        merge_batch(read_staged_batch(batch), {OWNER.table: target}, SparkSettings(remote=self._spark.url))
        seconds = time.perf_counter() - begun
        shutil.rmtree(batch)
        return {
            "merge_s": seconds,
            "driver_cpu_s": _cpu_seconds([self._spark.pid]) - driver,
            "executors_cpu_s": _cpu_seconds(self._cluster.worker_pids) - executors,
        }


def _cpu_seconds(pids: Iterable[int]) -> float:
    """Returns the processor seconds of processes and their children."""
    parents = [psutil.Process(pid) for pid in pids]
    found = [process for parent in parents for process in (parent, *parent.children(recursive=True))]
    return sum(times.user + times.system for times in (process.cpu_times() for process in found))
