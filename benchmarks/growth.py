"""Measures merges into larger and larger tables, after hundreds of merges, and in a new Spark, for `./sluice bench growth`.

The same batch, with adjacent keys, is merged into three tables: with a hundredth, a tenth and all of the greatest number of rows. The
tables have files of the same size. Afterwards, hundreds of small batches are merged into one table, which is maintained once at the end, as
the schedule does. The first merge is measured in a Spark that was started and warmed up as `sluice up` does.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from benchmarks.merge import CREATE, FILL, OWNER, spark_session
from benchmarks.merge_batches import DESTINATION, StagedFiles
from benchmarks.report import median, show, write_json
from sluice.console.toolchain.setup import set_up
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.spark_jobs.batch.run_batch import merge_batch
from sluice.spark_jobs.fence import BY_HAND
from sluice.spark_jobs.maintain.tables import MaintainedTable, optimize
from sluice.spark_jobs.session import SparkSettings
from sluice.spark_jobs.staged_files.read import read_staged_batch
from sluice.spark_jobs.table_owner import OWNER_PROPERTY
from sluice.spark_jobs.targets.report import TableTarget
from sluice.spark_jobs.targets.ways import SmallSetting

CHANGES = 1_000
PILED_CHANGES = 100
ROWS_A_FILE = 625_000
RUNS, WARM_RUNS = 5, 3
# The report has the median of the first merges, and the median of the last merges, of this many merges each.
WINDOW = 10
SPARK: SmallSetting = "spark"
AUTO: SmallSetting = "auto"


class GrowingTable:
    """A Delta table with a given number of rows, and batches to merge into it."""

    def __init__(self, spark: SparkConnectServer, folder: Path, rows: int) -> None:
        self._settings = SparkSettings(remote=spark.url)
        self._spark, self._folder, self.path = spark, folder, folder / "table"
        self._staged = StagedFiles(folder / "staged", rows)
        session = spark_session(spark.url)
        try:
            names = {"owner_property": OWNER_PROPERTY, "owner": OWNER.to_text()}
            session.sql(CREATE.format(path=self.path, vectors="true", **names)).collect()
            files = max(1, rows // ROWS_A_FILE)
            session.sql(FILL.format(path=self.path, rows=rows, files=files)).collect()
        finally:
            session.stop()

    def merge(self, changes: int, way: SmallSetting) -> float:
        """Merges one batch, and returns the seconds."""
        batch = self._staged.make(changes, "close")
        target = TableTarget(path=str(self.path), merge=way)
        begun = time.perf_counter()
        merge_batch(read_staged_batch(batch), {OWNER.table: target}, self._settings)
        seconds = time.perf_counter() - begun
        shutil.rmtree(batch)
        return seconds

    def look_after(self) -> float:
        """Runs the maintenance that the schedule would run, and returns the seconds."""
        begun = time.perf_counter()
        optimize(
            self._settings, MaintainedTable(owner=OWNER, path=str(self.path), key="id", run=DESTINATION, fence=BY_HAND)
        )
        return time.perf_counter() - begun

    @property
    def files(self) -> int:
        return len(DeltaTable(self.path).file_uris())

    def remove(self) -> None:
        shutil.rmtree(self._folder)


def run(json_file: Path | None, *, rows_max: int = 100_000_000, merges: int = 500) -> None:
    """Runs the three measurements, and prints and writes the figures of each. 100 million rows need about 10 GB of disk."""
    record: dict[str, Any] = {"changes": CHANGES, "piled_changes": PILED_CHANGES}
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as name:
        folder = Path(name)
        spark = SparkConnectServer(set_up([]).delta_jars, folder / "spark", memory="4g")
        try:
            for part in (_first_merge, _sizes, _pile):
                record |= part(spark, folder, rows_max, merges)
                write_json(json_file, record)
        finally:
            spark.stop()


def _first_merge(spark: SparkConnectServer, folder: Path, rows_max: int, _: int) -> dict[str, Any]:
    """Measures the first merge of a Spark that was warmed up and has not merged yet."""
    seconds: dict[SmallSetting, list[float]] = {SPARK: [], AUTO: []}
    for way, taken in seconds.items():
        spark.stop()
        spark.start()
        subprocess.run(spark.warm_up_command(folder / "warmup"), check=True)
        table = GrowingTable(spark, folder / f"first-{way}", rows_max // 100)
        taken += [table.merge(CHANGES, way) for _ in range(1 + RUNS)]
        table.remove()
    rows = [
        {"way": way, "first_s": round(taken[0], 2), "warm_s": median(taken[1:]), "ratio": _ratio(taken[0], taken[1:])}
        for way, taken in seconds.items()
    ]
    show("the first merge", rows)
    return {"first_merge": rows}


def _sizes(spark: SparkConnectServer, folder: Path, rows_max: int, _: int) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for way in (SPARK, AUTO):
        for size in (rows_max // 100, rows_max // 10, rows_max):
            table = GrowingTable(spark, folder / f"{way}-{size}", size)
            taken = [table.merge(CHANGES, way) for _ in range(WARM_RUNS + RUNS)][WARM_RUNS:]
            least = next((row["merge_s"] for row in rows if row["way"] == way), median(taken))
            rows.append(
                {"way": way, "table_rows": size, "files": table.files, "merge_s": median(taken), "ratio": _ratio(median(taken), [least])}
            )  # fmt: skip
            show("the same batch in larger tables", rows)
            table.remove()
    return {"sizes": rows}


def _pile(spark: SparkConnectServer, folder: Path, rows_max: int, merges: int) -> dict[str, Any]:
    table = GrowingTable(spark, folder / "pile", rows_max // 100)
    taken = [table.merge(PILED_CHANGES, AUTO) for _ in range(WARM_RUNS + merges)][WARM_RUNS:]
    fresh, piled = taken[:WINDOW], taken[-WINDOW:]
    files = table.files
    optimize_s = round(table.look_after(), 2)
    after = [table.merge(PILED_CHANGES, AUTO) for _ in range(WINDOW)]
    row = {
        "merges": merges, "fresh_s": median(fresh), "piled_s": median(piled), "piled_files": files, "optimize_s": optimize_s,
        "optimized_s": median(after), "optimized_files": table.files,
        "piled_ratio": _ratio(median(piled), fresh), "optimized_ratio": _ratio(median(after), fresh),
    }  # fmt: skip
    show("merges that pile up", [row])
    table.remove()
    return {"pile": row}


def _ratio(seconds: float, to: list[float]) -> float:
    return round(seconds / median(to), 2)
