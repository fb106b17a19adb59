"""Measures what each destination of an installation costs, with all processes of Sluice, for `./sluice bench destinations`.

One MySQL server has a database with a few tables for each destination. The tables get rows, then nothing changes for a while, then one
destination gets a row, and at last all destinations get rows at the same time.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from benchmarks.observing.cpu import measured
from benchmarks.report import show, write_json
from benchmarks.servers.pipeline import Pipeline
from sluice.cdc_engine.position import file_number
from sluice.console.stack.stack import StackOptions

OPTIONS = StackOptions(spark_memory="2g", die_with_parent=True)
TABLES = 3
ROUNDS = 5
CALM_SECONDS, IDLE_SECONDS = 30.0, 60.0
POLL_SECONDS = 0.2
WAIT_SECONDS_MAX = 3600.0
TICKS = "SELECT count(*), count(DISTINCT selector_id) FROM job_ticks WHERE timestamp >= datetime(?, 'unixepoch')"


def run(json_file: Path | None, *, counts: Sequence[int]) -> None:
    """Measures an installation for each number of destinations."""
    say, rows = Console().print, list[dict[str, Any]]()
    for count in counts:
        with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
            rows.append(ManyDestinations(Path(folder), count, say).measure())
        say(str(rows[-1]))
        write_json(json_file, {"tables_per_destination": TABLES, "idle_seconds": IDLE_SECONDS, "rows": rows})
    show(
        "destinations", [{name: value for name, value in row.items() if isinstance(value, int | float)} for row in rows]
    )


class ManyDestinations:
    """An installation with a given number of destinations, each with a database of its own on the same server."""

    def __init__(self, folder: Path, count: int, say: Callable[[str], None]) -> None:
        self._names = [f"d{number:03d}" for number in range(count)]
        self._pipeline = Pipeline(folder, self._names[0], say, options=OPTIONS, others=self._names[1:])
        self._next_id = 0

    def measure(self) -> dict[str, Any]:
        """Returns the figures of the installation."""
        server = self._pipeline.server
        server.start()
        try:
            with server.connect() as connection, connection.cursor() as cursor:
                for name in self._names:
                    cursor.execute(f"CREATE DATABASE {name}")
                    for number in range(TABLES):
                        cursor.execute(f"CREATE TABLE {name}.t{number} (id INT NOT NULL PRIMARY KEY, c VARCHAR(40))")
            begun = time.monotonic()
            self._pipeline.start()
            found: dict[str, Any] = {
                "destinations": len(self._names),
                "up_s": round(time.monotonic() - begun, 1),
                "first_changes_s": self._change(self._names),
            }
            found |= self._idle()
            found["one_changed_s"] = statistics.median(self._change(self._names[-1:]) for _ in range(ROUNDS))
            cpu = self._cpu_seconds()
            found["all_changed_s"] = self._change(self._names)
            found["all_changed_cpu_s"] = round(self._cpu_seconds() - cpu, 1)
        finally:
            self._pipeline.stop()
        return found

    def _change(self, names: Sequence[str]) -> float:
        """Adds a row to each table of the destinations, one transaction for each destination. Returns the seconds until all are acked."""
        self._next_id += 1
        ends = dict[str, tuple[int, int]]()
        begun = time.monotonic()
        with self._pipeline.server.connect() as connection, connection.cursor() as cursor:
            for name in names:
                cursor.execute("BEGIN")
                for number in range(TABLES):
                    cursor.execute(f"INSERT INTO {name}.t{number} VALUES ({self._next_id}, 'a')")
                cursor.execute("COMMIT")
                cursor.execute("SHOW MASTER STATUS")
                row: Any = cursor.fetchone()
                ends[name] = (file_number(row[0]), int(row[1]))
        while ends:
            ends = {name: end for name, end in ends.items() if self._pipeline.acked(name) < end}
            if time.monotonic() - begun > WAIT_SECONDS_MAX:
                raise TimeoutError(f"not acked after {WAIT_SECONDS_MAX:g} s: {sorted(ends)}")
            time.sleep(POLL_SECONDS)
        return round(time.monotonic() - begun, 2)

    def _idle(self) -> dict[str, Any]:
        time.sleep(CALM_SECONDS)
        began, at = time.monotonic(), time.time()
        rows = measured(self._pipeline.stack.file, IDLE_SECONDS)
        seconds = time.monotonic() - began
        ticks, sensors = self._ticks(at)
        return {
            "idle_cpu_percent": round(sum(row["cpu_percent"] for row in rows), 1),
            "idle_cpu_percents": {row["process"]: row["cpu_percent"] for row in rows},
            "rss_mb": {row["process"]: row["rss_mb"] for row in rows},
            "sensors": sensors,
            "tick_every_s": round(seconds * sensors / max(1, ticks), 1),
            "source_sessions": self._source_sessions(),
            **self._sizes(),
        }

    def _ticks(self, since: float) -> tuple[int, int]:
        """Returns how many ticks Dagster has begun since a time, and of how many sensors."""
        file = self._pipeline.stack.dagster_home / "schedules" / "schedules.db"
        with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:
            ticks, sensors = database.execute(TICKS, (since,)).fetchone()
        return int(ticks), int(sensors)

    def _source_sessions(self) -> int:
        with self._pipeline.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM information_schema.processlist WHERE user = 'root'")
            row: Any = cursor.fetchone()
        return int(row[0]) - 1  # Without the session of this query.

    def _sizes(self) -> dict[str, Any]:
        """Returns two numbers for each process of Sluice: the threads of it and its child processes, and the greatest number of open files
        of one of these processes.
        """
        found: dict[str, Any] = {"threads": {}, "open_files": {}}
        for name, processes in self._processes().items():
            found["threads"][name] = sum(each.num_threads() for each in processes)
            found["open_files"][name] = max(each.num_fds() for each in processes)
        return found

    def _processes(self) -> dict[str, list[psutil.Process]]:
        found = {}
        for name, record in self._pipeline.stack.file.running().items():
            root = psutil.Process(record.pid)
            found[name] = [root, *root.children(recursive=True)]
        return found

    def _cpu_seconds(self) -> float:
        """Returns the CPU seconds of all processes of Sluice, also of child processes that have ended."""
        seconds = 0.0
        for each in itertools.chain.from_iterable(self._processes().values()):
            with contextlib.suppress(psutil.Error):
                seconds += sum(each.cpu_times()[:4])
        return seconds
