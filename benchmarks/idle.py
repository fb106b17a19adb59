"""Measures the CPU time and memory of a complete installation while its source does not change, for `./sluice bench idle`."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from benchmarks.observing.memory import MEBIBYTE
from benchmarks.report import show, write_json
from benchmarks.servers.pipeline import Pipeline

DESTINATION = "bench"
CALM_SECONDS = 60.0  # The wait after the first batch. Work that the start has caused ends in this time.
ACK_SECONDS_MAX = 900.0
TABLES = 20


def run(json_file: Path | None, *, seconds: float) -> None:
    """Starts Sluice, merges one batch, and measures its processes while nothing changes."""
    screen = Console()
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as name:
        pipeline = Pipeline(Path(name), DESTINATION, screen.print)
        pipeline.server.start()
        try:
            with pipeline.server.connect() as connection, connection.cursor() as cursor:
                cursor.execute(f"CREATE DATABASE {DESTINATION}")
                cursor.execute(f"USE {DESTINATION}")
                for number in range(TABLES):
                    cursor.execute(f"CREATE TABLE t{number} (id INT NOT NULL PRIMARY KEY)")
                pipeline.start()
                for number in range(TABLES):
                    cursor.execute(f"INSERT INTO t{number} VALUES (1)")
            pipeline.wait_until_acked(pipeline.end(), ACK_SECONDS_MAX)
            time.sleep(CALM_SECONDS)
            rows = _measured(pipeline, seconds)
        finally:
            pipeline.stop()
    record = {
        "seconds": seconds,
        "cpu_percent": round(sum(row["cpu_percent"] for row in rows), 2),
        "rss_mb": sum(row["rss_mb"] for row in rows),
        "processes": rows,
    }
    show("idle", rows)
    screen.print(f"{record['cpu_percent']} % of a core")
    write_json(json_file, record)


def _measured(pipeline: Pipeline, seconds: float) -> list[dict[str, Any]]:
    """Returns the CPU time, as a percentage of one core, and the memory of each process of Sluice. Child processes are included."""
    parts = {name: psutil.Process(record.pid) for name, record in pipeline.stack.file.running().items()}
    before = {name: _cpu_seconds(process) for name, process in parts.items()}
    begun = time.monotonic()
    time.sleep(seconds)
    rows = []
    for name, process in parts.items():
        passed = time.monotonic() - begun
        used = sum(spent - before[name].get(pid, 0.0) for pid, spent in _cpu_seconds(process).items())
        size = sum(each.memory_info().rss for each in (process, *process.children(recursive=True)))
        rows.append({"process": name, "cpu_percent": round(100 * used / passed, 2), "rss_mb": size // MEBIBYTE})
    return rows


def _cpu_seconds(process: psutil.Process) -> dict[int, float]:
    """Returns the CPU seconds of a process and of each of its running descendants, by process id."""
    found = {}
    for each in (process, *process.children(recursive=True)):
        times = each.cpu_times()
        found[each.pid] = float(times.user + times.system)
    return found
