"""Measures what a user waits for at the start, for `./sluice bench start`.

First `sluice up` starts an installation with many new tables, which all get an initial snapshot. Afterwards `sluice up` starts an
installation with a few tables, for which changes wait. The caches are warm: Spark's classes are archived, and the kernels are compiled. The
time begins with the command, in a process of its own, and ends when readers see the rows.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.observing.waits import PARTS, BatchWatch
from benchmarks.report import median, show, write_json
from benchmarks.servers.pipeline import Pipeline
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.states import SnapshotState

DATABASE = "bench"
FEW, MANY, ROUNDS = 5, 200, 3
POLL_SECONDS = 0.1
WAIT_SECONDS_MAX = 600.0
CREATE = "CREATE TABLE t{number} (id INT NOT NULL PRIMARY KEY AUTO_INCREMENT, note VARCHAR(40))"


def run(json_file: Path | None, *, tables: int = MANY) -> None:
    """Measures the start with many new tables and the start with waiting changes. Prints and writes the figures."""
    record: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as name:
        folder = Path(name)
        record |= _snapshots(folder / "many", tables)
        write_json(json_file, record)
        record |= _changes(folder / "few")
    write_json(json_file, record)
    show("start", [{name: value for name, value in record.items() if isinstance(value, int | float)}])
    show("from the command to the ack of the first batch", [record["parts_s"]])


def _snapshots(folder: Path, tables: int) -> dict[str, Any]:
    """Measures the first start of a new installation, until all its tables are published."""
    with _pipeline(folder, tables, {"snapshot": "initial"}) as pipeline:
        up = _Up(pipeline)
        records = SnapshotRecords(pipeline.directory)
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while (done := sum(each.state == SnapshotState.PUBLISHED for each in records.all())) < tables:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{done} of {tables} tables are published: see {pipeline.stack.logs}")
            time.sleep(POLL_SECONDS)
        up.wait()
        found = records.all()
        published = max(each.published_at for each in found)
        return {
            "snapshot_tables": tables,
            "snapshots_from_up_s": round(published - up.begun, 2),
            "snapshots_s": round(published - min(each.reading_at for each in found), 2),
        }


def _changes(folder: Path) -> dict[str, Any]:
    """Measures warm starts of an installation for which changes wait, until the changes are visible and acked."""
    with _pipeline(folder, FEW, {}) as pipeline:
        _first_start(pipeline)
        found = [_start_with_changes(pipeline) for _ in range(ROUNDS)]
    figures = {name: round(median([each[name] for each in found]), 2) for name in ("up_s", "visible_s", "acked_s")}
    return {**figures, "parts_s": {name: round(median([each["parts"][name] for each in found]), 2) for name in PARTS}}


def _first_start(pipeline: Pipeline) -> None:
    """Starts the installation and stops it after its first batch, which creates the lake's tables."""
    try:
        _Up(pipeline).wait()
        pipeline.wait_until_acked(_changed(pipeline), WAIT_SECONDS_MAX)
    finally:
        pipeline.stack.down()


def _changed(pipeline: Pipeline) -> tuple[int, int]:
    """Changes each table, and returns the end of the binlog."""
    with pipeline.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"USE {DATABASE}")
        for number in range(FEW):
            cursor.execute(f"INSERT INTO t{number} (note) VALUES ('x')")
    return pipeline.end()


def _start_with_changes(pipeline: Pipeline) -> dict[str, Any]:
    end = _changed(pipeline)
    try:
        up = _Up(pipeline)
        with BatchWatch(pipeline.directory) as watch:
            while pipeline.acked() < end:
                if time.time() - up.begun > WAIT_SECONDS_MAX:
                    raise TimeoutError(f"acked {pipeline.acked()} of {end}: see {pipeline.stack.logs}")
                time.sleep(POLL_SECONDS)
        up.wait()
        watch.add_runs(pipeline.stack.dagster_home)
    finally:
        pipeline.stack.down()
    watch.add_commits(pipeline.table_path(f"t{number}") for number in range(FEW))
    times = watch.deliveries[max(watch.deliveries)]
    return {
        "up_s": up.seconds,
        "visible_s": times.last_commit - up.begun,
        "acked_s": times.settled - up.begun,
        "parts": times.parts(up.begun),
    }


class _Up:
    """A running `sluice up`, in a process of its own."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.begun = time.time()
        self.seconds = 0.0
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "sluice.console.main", "up"],
            cwd=pipeline.folder,
            env={**os.environ, "SLUICE_CONF": str(pipeline.folder / "conf")},
        )
        self._thread = threading.Thread(target=self._measure, daemon=True)
        self._thread.start()

    def _measure(self) -> None:
        self._process.wait()
        self.seconds = time.time() - self.begun

    def wait(self) -> None:
        """Waits until the command has ended. Raises CalledProcessError if it failed."""
        self._thread.join(WAIT_SECONDS_MAX)
        if code := self._process.wait(0):
            raise subprocess.CalledProcessError(code, "sluice up")


@contextmanager
def _pipeline(folder: Path, tables: int, settings: dict[str, Any]) -> Iterator[Pipeline]:
    """Yields an installation that is not started, whose source has `tables` tables of three rows."""
    folder.mkdir()
    pipeline = Pipeline(folder, DATABASE, Console().print, settings=settings)
    pipeline.server.start()
    try:
        with pipeline.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {DATABASE}")
            cursor.execute(f"USE {DATABASE}")
            for number in range(tables):
                cursor.execute(CREATE.format(number=number))
                cursor.execute(f"INSERT INTO t{number} (note) VALUES ('a'), ('b'), ('c')")
        pipeline.configure()
        yield pipeline
    finally:
        pipeline.stop()
