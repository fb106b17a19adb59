"""Merges a few changes of each of many tables in one batch, by each of Sluice's methods and by a bare loop, for `./sluice bench wide`.

The first part measures only merges. Three contenders take turns and merge staged batches of N tables: Spark's MERGE, the job for small
tables, and a loop that uses only deltalake. Each contender has its own tables. The second part measures the whole pipeline, with the same
changes in one transaction on a live MySQL, until the transaction is acked.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from rich.console import Console

from benchmarks.observing.memory import MemoryWatch, TreeWatch
from benchmarks.observing.waits import PARTS, BatchWatch
from benchmarks.report import median, show, write_json
from benchmarks.servers.pipeline import Pipeline
from sluice.batch_manifest.file import FORMAT
from sluice.console.stack.stack import CODE_SERVER, SPARK, StackOptions
from sluice.console.toolchain.setup import set_up
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.spark_jobs.batch.run_batch import merge_batch
from sluice.spark_jobs.session import SparkSettings
from sluice.spark_jobs.staged_files.read import read_staged_batch
from sluice.spark_jobs.targets.report import TableTarget
from sluice.spark_jobs.targets.ways import SmallSetting

LEDGER_ID, DATABASE = "be7c40000000", "bench"
SEED_ROWS = 200  # The number of rows in each table before the first measured batch.
TIME_US = 1_767_225_600_000_000
COLUMNS = [("id", "bigint"), ("k", "int"), ("c", "string"), ("pad", "string")]
WAYS = ("spark", "small", "loop")
WARM_ROUNDS, SPARK_ROUNDS = 5, 2  # The slow contender needs fewer rounds, because its times hardly differ.
ACK_SECONDS_MAX = 1800.0
CREATE = "CREATE TABLE {name} (id BIGINT NOT NULL PRIMARY KEY, k INT, c VARCHAR(120), pad VARCHAR(60))"


class WideBatches:
    """Creates staged batches of many tables, in the format of `staging`. The first batch fills the tables. In later batches, half of the
    changes update rows, and half insert rows.
    """

    def __init__(self, directory: Path, tables: int, changes: int) -> None:
        self._directory, self._changes = directory, changes
        self.names = [f"t{number:04d}" for number in range(tables)]
        self._order_key, self._batch, self._next_id = 1, 0, 1

    def make(self, *, fill: bool = False) -> Path:
        """Writes a batch directory with its manifest. With `fill`, it is the batch that fills the tables."""
        self._batch += 1
        ids, operations = self._images(fill)
        folder = self._directory / f"{self._batch}"
        folder.mkdir(parents=True)
        first, last = self._order_key, self._order_key + len(ids) - 1
        self._order_key = last + 1
        rows = _rows(ids, operations, first)
        tables = []
        for name in self.names:
            file = folder / f"{DATABASE}.{name}.0.parquet"
            pq.write_table(rows, file)
            tables.append({"database": DATABASE, "table": name, "segments": [_segment(file, ids, operations, first)]})
        (folder / "manifest.json").write_text(json.dumps(self._manifest(tables, last)))
        return folder

    def _images(self, fill: bool) -> tuple[list[int], list[int]]:
        count = SEED_ROWS if fill else self._changes
        old = 0 if fill else count // 2
        step = max(1, (self._next_id - 1) // max(old, 1))
        ids = [1 + step * number for number in range(old)] + list(range(self._next_id, self._next_id + count - old))
        self._next_id += count - old
        return ids, [3] * old + [1] * (count - old)

    def _manifest(self, tables: list[dict[str, Any]], last: int) -> dict[str, Any]:
        start, end = ({"epoch": 0, "file": "mysql-bin.000001", "offset": self._batch - 1 + add} for add in (0, 1))
        times = {"staged_at_us": TIME_US, "first_commit_time_us": TIME_US, "last_commit_time_us": TIME_US}
        return {
            "format": FORMAT, "destination": DATABASE, "ledger_id": LEDGER_ID, "epoch": 0, "delivery": self._batch,
            "start": start, "end": end, "end_order_key": last, "rows": 0, "changes": 0, "bytes": 0, **times, "tables": tables,
        }  # fmt: skip


def _rows(ids: list[int], operations: list[int], first: int) -> pa.Table:
    text = [f"{number:0119d}" for number in ids]
    return pa.table(
        {
            "_sluice_operation": pa.array(operations, pa.int8()),
            "_sluice_order_key": pa.array(range(first, first + len(ids)), pa.int64()),
            "_sluice_commit_time": pa.array([TIME_US] * len(ids), pa.timestamp("us", "UTC")),
            "id": pa.array(ids, pa.int64()),
            "k": pa.array([number % 997 for number in ids], pa.int32()),
            "c": text,
            "pad": text,
            "_sluice_row": pa.array(range(1, len(ids) + 1), pa.int64()),
        }
    )


def _segment(file: Path, ids: list[int], operations: list[int], first: int) -> dict[str, Any]:
    columns = [{"name": name, "type": kind, "nullable": name != "id", "mysql_type": kind} for name, kind in COLUMNS]
    return {
        "kind": "changes", "file": file.name, "size_bytes": file.stat().st_size, "version": "0", "rows": len(ids),
        "inserts": operations.count(1), "updates": operations.count(3), "deletes": 0, "key_changes": 0, "unique_keys": True,
        "first_order_key": first, "last_order_key": first + len(ids) - 1, "first_commit_time_us": TIME_US, "last_commit_time_us": TIME_US,
        "key": ["id"], "key_min": [min(ids)], "key_max": [max(ids)], "columns": columns,
    }  # fmt: skip


class Contender:
    """A method of merging a batch, with its own tables."""

    def __init__(self, name: str, lake: Path, merge: Callable[[Path, Path], None], spark: SparkConnectServer) -> None:
        self.name, self._lake, self._merge, self._spark = name, lake, merge, spark
        self.seconds: list[float] = []
        self.cpu_seconds: list[float] = []

    def take(self, batch: Path) -> None:
        """Merges one batch. Records the time, and the CPU seconds of this process and of Spark's."""
        cpu, begun = _cpu_seconds(self._spark), time.perf_counter()
        self._merge(batch, self._lake)
        self.seconds.append(time.perf_counter() - begun)
        self.cpu_seconds.append(_cpu_seconds(self._spark) - cpu)

    def figures(self, tables: int) -> dict[str, Any]:
        """Returns the figures. The first batch creates the tables. The second batch is the first one on existing tables. The later
        batches are warm.
        """
        new, first, *warm = self.seconds
        return {
            "way": self.name, "new_tables_s": round(new, 2), "first_s": round(first, 2), "warm_s": median(warm),
            "cpu_s_per_table": round(statistics.median(self.cpu_seconds[2:]) / tables, 4),
        }  # fmt: skip


def _cpu_seconds(spark: SparkConnectServer) -> float:
    """Returns the CPU seconds of this process and of Spark with its workers, including workers that have ended."""
    server = psutil.Process(spark.pid)
    processes = [psutil.Process(), server, *server.children(recursive=True)]
    used = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        used += times.user + times.system + times.children_user + times.children_system
    return used


def by_sluice(setting: SmallSetting, spark: SparkSettings) -> Callable[[Path, Path], None]:
    """Returns a function that merges a batch as a run does, with a run's checks but without its records."""

    def merge(batch: Path, lake: Path) -> None:
        names = [each["table"] for each in json.loads((batch / "manifest.json").read_text())["tables"]]
        targets = {f"{DATABASE}.{name}": TableTarget(path=str(lake / name), merge=setting) for name in names}
        merge_batch(read_staged_batch(batch), targets, spark)

    return merge


def by_loop(batch: Path, lake: Path) -> None:
    """Merges with a bare loop of deltalake in this process. The loop makes no checks, uses no transactions, and does not sync to disk."""
    for file in sorted(batch.glob("*.parquet")):
        rows = pq.read_table(file)
        path = lake / file.name.split(".")[1]
        if not DeltaTable.is_deltatable(str(path)):
            DeltaTable.create(str(path), rows.schema)
        changed = DeltaTable(str(path)).merge(rows, "t.id = s.id", source_alias="s", target_alias="t")
        changed.when_matched_update_all().when_not_matched_insert_all().execute()


def run(
    json_file: Path | None, *, tables: int = 200, changes: int = 5, whole: bool = True, ways: Sequence[str] = WAYS
) -> None:
    """Measures the contenders. Prints and writes the figures of each. With `whole`, measures the whole pipeline too."""
    record: dict[str, Any] = {"tables": tables, "changes_per_table": changes}
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as name:
        record |= _merges(Path(name), tables, changes, ways)
        write_json(json_file, record)
        if whole:
            record |= _whole(Path(name) / "whole", tables, changes)
            write_json(json_file, record)
    show("wide", record["ways"])
    show("whole", [{key: value for key, value in record.items() if isinstance(value, int | float)}])


def _merges(folder: Path, tables: int, changes: int, chosen: Sequence[str]) -> dict[str, Any]:
    batches = WideBatches(folder / "staged", tables, changes)
    spark = SparkConnectServer(set_up([]).delta_jars, folder / "spark", memory="2g").start()
    settings = SparkSettings(remote=spark.url)
    ways: dict[str, Callable[[Path, Path], None]] = {
        "spark": by_sluice("spark", settings),
        "small": by_sluice("auto", settings),
        "loop": by_loop,
    }
    contenders = [Contender(name, folder / name, ways[name], spark) for name in chosen]
    try:
        with TreeWatch(spark.pid) as memory:
            for number in range(2 + WARM_ROUNDS):
                batch = batches.make(fill=number == 0)
                for contender in contenders:
                    if contender.name != "spark" or number < 2 + SPARK_ROUNDS:
                        contender.take(batch)
    finally:
        spark.stop()
    figures = [contender.figures(tables) for contender in contenders]
    small = next((each for each in figures if each["way"] == "small"), figures[0])
    return {
        "seconds": small["warm_s"], "spark_cpu_s_per_table": small["cpu_s_per_table"], "spark_rss_mb_max": memory.peak_mb,
        "ways": figures, "load_average": round(psutil.getloadavg()[1], 2),
    }  # fmt: skip


def _whole(folder: Path, tables: int, changes: int) -> dict[str, Any]:
    """Measures the whole pipeline: the time from a commit in the source until the batch is acked."""
    folder.mkdir()
    pipeline = Pipeline(
        folder,
        DATABASE,
        Console().print,
        options=StackOptions(spark_memory="2g", die_with_parent=True, awaits_warm_up=True),
    )
    pipeline.server.start()
    names = [f"t{number:04d}" for number in range(tables)]
    try:
        with pipeline.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {DATABASE}")
            cursor.execute(f"USE {DATABASE}")
            for name in names:
                cursor.execute(CREATE.format(name=name))
        pipeline.start()
        with MemoryWatch(pipeline.stack.file) as memory:
            commits = [_commit(pipeline, names, changes, number) for number in range(2 + WARM_ROUNDS)]
    finally:
        pipeline.stop()
    return {
        "whole_new_tables_s": round(commits[0]["acked_s"], 2),
        "whole_warm_s": median([each["acked_s"] for each in commits[2:]]),
        **{name: median([each[name] for each in commits[2:]]) for name in ("first_visible_s", "visible_s", "acked_s")},
        "parts_s": {name: median([each["parts"][name] for each in commits[2:]]) for name in PARTS},
        "whole_spark_rss_mb_max": memory.peak_mb.get(SPARK, 0),
        "engine_host_rss_mb_max": memory.peak_mb.get(CODE_SERVER, 0),
    }


def _commit(pipeline: Pipeline, names: list[str], changes: int, number: int) -> dict[str, Any]:
    """Makes one transaction over all tables. Returns the seconds until the first table shows the transaction, until all tables show it, and
    until it is acked. Also returns the parts of that time.
    """
    with (
        BatchWatch(pipeline.directory) as watch,
        pipeline.server.connect() as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(f"USE {DATABASE}")
        cursor.execute("BEGIN")
        for name in names:
            values = ", ".join(f"({number * changes + index}, {index}, 'c', 'p')" for index in range(changes))
            cursor.execute(f"INSERT INTO {name} VALUES {values}")
        cursor.execute("COMMIT")
        sent = time.time()
        pipeline.wait_until_acked(pipeline.end(), ACK_SECONDS_MAX)
    watch.add_runs(pipeline.stack.dagster_home)
    watch.add_commits(pipeline.table_path(name) for name in names)
    times = watch.deliveries[max(watch.deliveries)]
    return {
        "first_visible_s": times.first_commit - sent,
        "visible_s": times.last_commit - sent,
        "acked_s": times.settled - sent,
        "parts": times.parts(sent),
    }
