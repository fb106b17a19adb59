"""Measures what a destination with thousands of tables costs, with all processes of Sluice, for `./sluice bench tables`.

A tenth of the tables has rows before the start. All tables get an initial snapshot. Afterwards a few tables change, nothing changes for a
while, all tables change in one transaction, and many are altered. A second lake has only a few tables, and the same few changes are made
there. If these changes take the same time in both lakes, unchanged tables cost nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
from deltalake import DeltaTable
from rich.console import Console

from benchmarks.observing.cpu import measured
from benchmarks.observing.memory import MEBIBYTE, MemoryWatch
from benchmarks.report import show, write_json
from benchmarks.servers.pipeline import Pipeline
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.states import SnapshotState
from sluice.cdc_engine.table_meta.table_list.reading import read_tables
from sluice.console.stack.stack import CODE_SERVER, StackOptions

DATABASE = "bench"
OPTIONS = StackOptions(spark_memory="2g", die_with_parent=True)
CREATE = "CREATE TABLE {name} (id BIGINT NOT NULL PRIMARY KEY, {columns})"
FILL = "INSERT INTO {name} (id, c0) WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100) SELECT i, 'x' FROM n"
CHANGED, ALTERED = 5, 50
WARM_ROUNDS, ROUNDS = 2, 5
CALM_SECONDS, IDLE_SECONDS = 180.0, 50.0
COMMANDS = {
    "status_s": ("status",),
    "check_s": ("check",),
    "snapshot_status_s": ("snapshot", "status"),
    "schema_show_s": ("schema", "show", DATABASE),
}
POLL_SECONDS = 0.2
WAIT_SECONDS_MAX = 7200.0


def run(json_file: Path | None, *, tables: int) -> None:
    """Measures a lake with many tables, then a lake with a few."""
    say = Console().print
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        record = ManyTables(Path(folder) / "many", tables, say).measure(lambda found: write_json(json_file, found))
        few = ManyTables(Path(folder) / "few", CHANGED, say).measure_few()
    changed, small = record["five_changed"]["acked_s"], few["acked_s"]
    record |= {"five_of_five": few, "five_of_five_s": small, "times_of_five_tables": round(changed / small, 2)}
    show(f"{tables} tables", [{name: value for name, value in record.items() if isinstance(value, int | float)}])
    write_json(json_file, record)


class ManyTables:
    """An installation with a given number of tables."""

    def __init__(self, folder: Path, tables: int, say: Callable[[str], None]) -> None:
        folder.mkdir()
        self._say = say
        self._names = [f"t{number:05d}" for number in range(tables)]
        self._pipeline = Pipeline(folder, DATABASE, say, settings={"snapshot": "initial"}, options=OPTIONS)
        self._next_id = 1000

    def measure(self, keep: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """Returns all figures. After each part, passes the figures so far to `keep`."""
        record: dict[str, Any] = {"tables": len(self._names)}
        with self._running(record) as memory:
            for part in (
                *(self._snapshots, self._few_changes, self._idle, self._commands),
                *(self._all_changes, self._altered),
            ):
                record |= part()
                record["host_rss_mb"], record["peak_rss_mb"] = memory.peak_mb.get(CODE_SERVER, 0), dict(memory.peak_mb)
                self._say(str(record))
                keep(record)
        return record

    def measure_few(self) -> dict[str, Any]:
        """Returns the figures of a few changes in a lake with few tables."""
        with self._running({}):
            self._snapshots()
            found: dict[str, Any] = self._few_changes()["five_changed"]
        return found

    @contextlib.contextmanager
    def _running(self, record: dict[str, Any]) -> Iterator[MemoryWatch]:
        self._pipeline.server.start()
        try:
            with self._pipeline.server.connect() as connection, connection.cursor() as cursor:
                cursor.execute(f"CREATE DATABASE {DATABASE}")
                cursor.execute(f"USE {DATABASE}")
                for number, name in enumerate(self._names):
                    columns = ", ".join(f"c{each} VARCHAR(40)" for each in range(2 + number % 10))
                    cursor.execute(CREATE.format(name=name, columns=columns))
                    if number % 10 == 0:
                        cursor.execute(FILL.format(name=name))
            begun = time.monotonic()
            self._pipeline.start()
            record["up_s"] = round(time.monotonic() - begun, 1)
            with MemoryWatch(self._pipeline.stack.file) as memory:
                yield memory
        finally:
            self._pipeline.stop()

    def _snapshots(self) -> dict[str, Any]:
        """Waits until all tables are published. The times come from the records of the snapshots, because snapshots begin while Sluice is
        still starting.
        """
        records, begun = SnapshotRecords(self._pipeline.directory), time.monotonic()
        while sum(each.state == SnapshotState.PUBLISHED for each in records.all()) < len(self._names):
            _wait(begun)
        ends = sorted(each.published_at for each in records.all())
        seconds = ends[-1] - min(each.reading_at for each in records.all())
        tenth = max(1, len(ends) // 10)
        return {
            "snapshot_s": round(seconds, 1),
            "snapshot_tables_per_min": _per_minute(len(ends), seconds),
            "snapshot_first_tenth_published_per_min": _per_minute(tenth, ends[tenth - 1] - ends[0]),
            "snapshot_last_tenth_published_per_min": _per_minute(tenth, ends[-1] - ends[-tenth]),
        }

    def _few_changes(self) -> dict[str, Any]:
        names = self._names[:: max(1, len(self._names) // CHANGED)][:CHANGED]
        for _ in range(WARM_ROUNDS):
            self._change(names)
        sizes, rounds = [self._dagster_bytes()], []
        for _ in range(ROUNDS):
            rounds.append(self._change(names))
            sizes.append(self._dagster_bytes())
        found = {name: round(statistics.median(each[name] for each in rounds), 2) for name in rounds[0]}
        # The median is used, because Dagster's storage may become smaller between two batches, when old events are removed.
        bytes_per_batch = int(statistics.median(after - before for before, after in itertools.pairwise(sizes)))
        return {"five_changed": found, "five_changed_s": found["acked_s"], "dagster_bytes_per_batch": bytes_per_batch}

    def _all_changes(self) -> dict[str, Any]:
        size = self._dagster_bytes()
        found = self._change(self._names)
        tables = len(self._names)
        return {
            "all_changed": {**found, "cpu_s_per_table": round(found["cpu_s"] / tables, 4)},
            "all_changed_dagster_bytes_per_table": round((self._dagster_bytes() - size) / tables),
        }

    def _change(self, names: Sequence[str]) -> dict[str, float]:
        """Adds two rows to each table in one transaction. Returns the seconds until all rows are visible, the seconds until the
        transaction is acked, and the CPU seconds.
        """
        self._next_id += 2
        versions = {name: self._version(name) for name in names}
        cpu = self._cpu_seconds()
        with self._pipeline.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"USE {DATABASE}")
            cursor.execute("BEGIN")
            for name in names:
                cursor.execute(f"INSERT INTO {name} (id, c0) VALUES ({self._next_id}, 'a'), ({self._next_id + 1}, 'b')")
            cursor.execute("COMMIT")
        begun, waiting = time.monotonic(), list(names)
        while waiting:
            waiting = [name for name in waiting if not self._has_version(name, versions[name] + 1)]
            _wait(begun)
        visible = time.monotonic() - begun
        self._pipeline.wait_until_acked(self._pipeline.end(), WAIT_SECONDS_MAX)
        acked = time.monotonic() - begun
        return {
            "visible_s": round(visible, 2),
            "acked_s": round(acked, 2),
            "cpu_s": round(self._cpu_seconds() - cpu, 2),
        }

    def _altered(self) -> dict[str, Any]:
        """Adds a column to many tables by one statement each, and waits until the engine has recorded all new columns."""
        names = self._names[:ALTERED]
        with self._pipeline.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"USE {DATABASE}")
            for name in names:
                cursor.execute(f"ALTER TABLE {name} ADD COLUMN added INT")
        begun, directory = time.monotonic(), self._pipeline.directory
        while {each.table for each in read_tables(directory) if each.columns[-1].name == "added"} != set(names):
            _wait(begun)
        seconds = time.monotonic() - begun
        return {"alters": len(names), "alters_s": round(seconds, 2), "alter_s": round(seconds / len(names), 3)}

    def _idle(self) -> dict[str, Any]:
        # Work that follows the snapshots and batches, such as a reload of definitions, ends in this time.
        time.sleep(CALM_SECONDS)
        written = self._written_bytes()
        rows = measured(self._pipeline.stack.file, IDLE_SECONDS)
        return {
            "idle_cpu_percent": round(sum(row["cpu_percent"] for row in rows), 1),
            "idle_cpu_percents": {row["process"]: row["cpu_percent"] for row in rows},
            "idle_pss_mb": {row["process"]: row["pss_mb"] for row in rows},
            "idle_written_mb": round((self._written_bytes() - written) / MEBIBYTE, 1),
        }

    def _commands(self) -> dict[str, Any]:
        """Measures commands as users call them: the median of ROUNDS calls, with the start of Python. The exit code does not matter."""
        found = {}
        for name, words in COMMANDS.items():
            times = []
            for _ in range(ROUNDS):
                begun = time.monotonic()
                subprocess.run(
                    [sys.executable, "-P", "-m", "sluice.console.main", *words],
                    env={**os.environ, "SLUICE_CONF": str(self._pipeline.folder / "conf")},
                    capture_output=True,
                    check=False,
                )
                times.append(time.monotonic() - begun)
            found[name] = round(statistics.median(times), 2)
        return {"commands": found}

    def _version(self, name: str) -> int:
        path = str(self._pipeline.table_path(name))
        return DeltaTable(path).version() if DeltaTable.is_deltatable(path) else -1

    def _has_version(self, name: str, version: int) -> bool:
        """Returns whether a table's log has this version, by looking for the version's file. Opening thousands of tables would use
        processor time, which is being measured.
        """
        return (self._pipeline.table_path(name) / "_delta_log" / f"{version:020}.json").exists()

    def _processes(self) -> list[psutil.Process]:
        roots = [psutil.Process(record.pid) for record in self._pipeline.stack.file.running().values()]
        return [*roots, *(child for root in roots for child in root.children(recursive=True))]

    def _cpu_seconds(self) -> float:
        """Returns the CPU seconds of the processes of Sluice. Child processes that have ended are included."""
        seconds = 0.0
        for process in self._processes():
            with contextlib.suppress(psutil.Error):
                seconds += sum(process.cpu_times()[:4])
        return seconds

    def _written_bytes(self) -> int:
        written = 0
        for process in self._processes():
            with contextlib.suppress(psutil.Error):
                written += process.io_counters().write_bytes
        return written

    def _dagster_bytes(self) -> int:
        files = (each.stat().st_size for each in self._pipeline.stack.dagster_home.rglob("*") if each.is_file())
        return sum(files)


def _per_minute(tables: int, seconds: float) -> float:
    return round(60 * tables / max(seconds, 0.1), 1)


def _wait(begun: float) -> None:
    """Waits a moment. Raises TimeoutError if WAIT_SECONDS_MAX have passed since `begun`."""
    if time.monotonic() - begun > WAIT_SECONDS_MAX:
        raise TimeoutError(f"not there after {WAIT_SECONDS_MAX:g} s")
    time.sleep(POLL_SECONDS)
