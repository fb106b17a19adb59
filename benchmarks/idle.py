"""Measures the CPU time and memory of a complete installation while its source does not change, for `./sluice bench idle`. A Dagster
without Sluice is measured at the same time, for comparison.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from rich.console import Console

from benchmarks.observing.cpu import measured
from benchmarks.report import show, write_json
from benchmarks.servers.bare_dagster.processes import BARE, BareDagster
from benchmarks.servers.pipeline import Pipeline

DESTINATION = "bench"
CALM_SECONDS = 180.0  # The wait after the first batch. Work that the start has caused ends in this time.
ACK_SECONDS_MAX = 900.0
TABLES = 20


def run(json_file: Path | None, *, seconds: float) -> None:
    """Starts Sluice, merges one batch, and measures its processes while nothing changes."""
    screen = Console()
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as name:
        pipeline = Pipeline(Path(name), DESTINATION, screen.print)
        bare = BareDagster(Path(name) / "dagster")
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
            bare.start()
            time.sleep(CALM_SECONDS)
            rows = measured(pipeline.stack.file, seconds, bare.pids())
        finally:
            bare.stop()
            pipeline.stop()
    ours = [row for row in rows if not row["process"].startswith(BARE)]
    theirs = [row for row in rows if row["process"].startswith(BARE)]
    record = {
        "seconds": seconds,
        "cpu_percent": round(sum(row["cpu_percent"] for row in ours), 2),
        "bare_dagster_cpu_percent": round(sum(row["cpu_percent"] for row in theirs), 2),
        "rss_mb": sum(row["rss_mb"] for row in ours),
        "pss_mb": sum(row["pss_mb"] for row in ours),
        "processes": rows,
    }
    show("idle", rows)
    screen.print(f"{record['cpu_percent']} % of a core, a bare Dagster {record['bare_dagster_cpu_percent']} %")
    write_json(json_file, record)
