"""Measures the time from a commit in MySQL to a readable row in Delta, with all processes of Sluice, for `./sluice bench e2e`.

The benchmark measures `runs: drain` and `runs: batch`. First a restarted engine processes backlogs. Afterwards two steady loads run, with a
marker row every two seconds. Freshness is the time from a marker's commit in MySQL until the Delta log contains the version with the
marker, because every reader sees the marker from then on. The module `waits` splits this time, and the time until the ack, into parts.
"""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.binlog_sets import ROW, TABLE
from benchmarks.observing.memory import MemoryWatch
from benchmarks.observing.waits import BatchWatch, medians
from benchmarks.report import show, write_json
from benchmarks.servers.pipeline import Pipeline
from sluice.console.demo.lake import DemoTable, markers_shown, percentile
from sluice.console.stack.stack import CODE_SERVER

MODES = ("drain", "batch")
BACKLOG_CHANGES = 300_000
BACKLOGS = 3  # This many backlogs are measured one after another, and the median is reported.
LOADS = (100, 500)
LOAD_SECONDS = 120.0
MARKER_SECONDS = 2.0
SLICE_SECONDS = 0.1  # One call of the procedure creates as many transactions as are due in this time.
ACK_SECONDS_MAX = 900.0
TABLES = ("shop_1", "shop_2", "shop_3", "shop_4")
MARKER = "CREATE TABLE marker (id INT NOT NULL AUTO_INCREMENT PRIMARY KEY, sent_at DATETIME(6) NOT NULL)"
PROCEDURE = """
CREATE PROCEDURE trade(transactions INT, known INT)
BEGIN
  DECLARE i, target INT DEFAULT 0;
  WHILE i < transactions DO
    SET target = 1 + FLOOR(RAND() * known);
    START TRANSACTION;
    INSERT INTO shop_1 (k, c, pad) VALUES ({row});
    UPDATE shop_2 SET k = k + 1 WHERE id = target;
    INSERT INTO shop_3 (k, c, pad) VALUES ({row});
    IF i % 10 = 0 THEN DELETE FROM shop_4 WHERE id = target; ELSE UPDATE shop_4 SET c = {text} WHERE id = target; END IF;
    COMMIT;
    SET i = i + 1;
  END WHILE;
END
"""
SEED = """
INSERT INTO {name} (k, c, pad)
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows}) SELECT {row} FROM n
"""
# Each transaction makes three or four changes, nearly always four. The fourth change is missing if an earlier transaction deleted its row.
CHANGES_A_TRANSACTION = 4
SEED_ROWS = 20_000


def run(json_file: Path | None, *, backlog: int = BACKLOG_CHANGES, seconds: float = LOAD_SECONDS) -> None:
    """Measures backlogs and loads in each mode. All modes use one pipeline, whose engine is restarted between two modes."""
    screen = Console()
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as name:
        pipeline = Pipeline(Path(name), "bench", screen.print, settings={"runs": MODES[0]})
        pipeline.server.start()
        try:
            _prepare(pipeline)
            pipeline.start()
            with MemoryWatch(pipeline.stack.file) as memory:
                _seed(pipeline)
                record: dict[str, Any] = {"modes": {}}
                for mode in MODES:
                    pipeline.change({"runs": mode})
                    record["modes"][mode] = _mode(pipeline, backlog, seconds)
                    write_json(json_file, record)
        finally:
            pipeline.stop()
    record["peak_rss_mb"] = memory.peak_mb
    record["engine_host_rss_mb_max"] = memory.peak_mb.get(CODE_SERVER, 0)
    for mode, measured in record["modes"].items():
        show(
            f"backlog, runs: {mode}",
            [{key: value for key, value in measured.items() if isinstance(value, int | float)}],
        )
        show(f"steady loads, runs: {mode}", measured["loads"])
    write_json(json_file, record)


def _mode(pipeline: Pipeline, backlog: int, seconds: float) -> dict[str, Any]:
    """Returns the figures of one mode. The mode's freshness is that of the first load."""
    measured = _median_of([_backlog(pipeline, backlog) for _ in range(BACKLOGS)])
    loads = [_load(pipeline, rate, seconds) for rate in LOADS]
    return {
        **measured,
        "freshness_p50_s": loads[0]["freshness_p50_s"],
        "freshness_p95_s": loads[0]["freshness_p95_s"],
        "loads": loads,
    }


def _prepare(pipeline: Pipeline) -> None:
    with pipeline.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE bench")
        cursor.execute("USE bench")
        for name in TABLES:
            cursor.execute(TABLE.format(name=name))
        cursor.execute(MARKER)
        cursor.execute(PROCEDURE.format(row=ROW.format(seed="i"), text="LEFT(SHA2(CONCAT('u', i), 512), 119)"))


def _seed(pipeline: Pipeline) -> None:
    """Creates rows that can be updated, and waits until they are merged. After that, every Delta table exists, and no code runs for the
    first time during the measurement.
    """
    with pipeline.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("USE bench")
        cursor.execute("SET SESSION cte_max_recursion_depth = 10000000")
        for name in TABLES:
            cursor.execute(SEED.format(name=name, rows=SEED_ROWS, row=ROW.format(seed="i")))
        cursor.execute("INSERT INTO marker (sent_at) VALUES (NOW(6))")
        cursor.execute("CALL trade(100, %s)", (SEED_ROWS,))
    pipeline.wait_until_acked(pipeline.end(), ACK_SECONDS_MAX)


def _backlog(pipeline: Pipeline, changes: int) -> dict[str, Any]:
    """Measures a backlog that is created while the engine is stopped. The time is from the engine's start until the last ack."""
    pipeline.stop_engine()
    with pipeline.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("USE bench")
        cursor.execute("CALL trade(%s, %s)", (changes // CHANGES_A_TRANSACTION, SEED_ROWS))
    end = pipeline.end()
    begun = time.monotonic()
    pipeline.start_again()
    host_seconds = time.monotonic() - begun
    pipeline.wait_until_acked(end, ACK_SECONDS_MAX)
    seconds = time.monotonic() - begun
    return {
        "backlog_changes": changes,
        "backlog_s": round(seconds, 2),
        "backlog_changes_per_s": round(changes / seconds, 1),
        "engine_host_start_s": round(host_seconds, 2),
        "backlog_changes_per_s_after_host_start": round(changes / max(seconds - host_seconds, 0.1), 1),
    }


def _median_of(backlogs: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the backlog with the median time, and the times of all backlogs."""
    middle = sorted(backlogs, key=lambda backlog: backlog["backlog_s"])[len(backlogs) // 2]
    return {**middle, "backlogs_s": [backlog["backlog_s"] for backlog in backlogs]}


def _load(pipeline: Pipeline, rate: int, seconds: float) -> dict[str, Any]:
    """Runs transactions at a steady rate, with a marker every two seconds. Waits until all transactions are acked, and evaluates the
    markers.
    """
    path = pipeline.table_path("marker")
    before = DemoTable(path, keyless=False).version
    begun = time.monotonic()
    with BatchWatch(pipeline.directory) as watch:
        marking = threading.Thread(target=_mark, args=(pipeline, begun + seconds))
        marking.start()
        made = _trade(pipeline, rate, begun + seconds)
        marking.join()
        made_seconds = time.monotonic() - begun
        pipeline.wait_until_acked(pipeline.end(), ACK_SECONDS_MAX)
    watch.add_runs(pipeline.stack.dagster_home)
    watch.add_commits(pipeline.table_path(name) for name in (*TABLES, "marker"))
    shown = markers_shown(path, before)
    found = sorted(each.shown - each.sent for each in shown)
    return {
        "wanted_transactions_per_s": rate,
        "transactions_per_s": round(made / made_seconds, 1),
        "freshness_p50_s": percentile(found, 0.5),
        "freshness_p95_s": percentile(found, 0.95),
        "freshness_max_s": round(max(found), 2),
        **medians(watch.parts(shown)),
        "batches": len(watch.deliveries),
        "markers": len(found),
    }


def _trade(pipeline: Pipeline, rate: int, end: float) -> int:
    made, next_at = 0, time.monotonic()
    with pipeline.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("USE bench")
        while time.monotonic() < end:
            cursor.execute("CALL trade(%s, %s)", (round(rate * SLICE_SECONDS), SEED_ROWS))
            made += round(rate * SLICE_SECONDS)
            next_at += SLICE_SECONDS
            time.sleep(max(0.0, next_at - time.monotonic()))
    return made


def _mark(pipeline: Pipeline, end: float) -> None:
    with pipeline.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("USE bench")
        while time.monotonic() < end:
            cursor.execute("INSERT INTO marker (sent_at) VALUES (NOW(6))")
            time.sleep(MARKER_SECONDS)
