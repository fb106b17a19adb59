"""Warms up a Spark server: starts a Python worker, then writes, merges and deletes one tiny Delta table in a Spark Connect session.

The first MERGE of a server takes half a minute, because Spark loads and compiles classes. The warm-up spends that time before a user needs
a merge. The warm-up is a separate program, so that it can be ended at any time: Spark's client would wait some minutes for a dead server.
`sluice up` does not wait for the program. The program ends itself when its server ends, and at the latest after some minutes.

When `sluice up` starts everything, the other processes and the first run need the processors. Therefore the MERGE statements wait until the
processors are idle, but at most for some seconds.
"""

import os
import shutil
import signal
import socket
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path

import psutil
from pyspark.sql.connect.session import SparkSession

from sluice.spark_jobs.session import SparkSettings
from sluice.spark_jobs.small.job import why_not_on_executors

MERGES = 2
LOOK_SECONDS = 1.0
# The processors are idle if IDLE_LOOKS measurements in a row, of LOOK_SECONDS each, find that programs use less than this percentage of
# their time.
IDLE_PERCENT, IDLE_LOOKS = 50.0, 2


def warm_up(url: str, folder: Path, idle_seconds_max: float) -> None:
    """Starts a Python worker, then runs the statements of a merge on twenty rows in `folder`, and deletes the folder. Before the
    statements, waits at most `idle_seconds_max` until the processors are idle.
    """
    shutil.rmtree(folder, ignore_errors=True)
    # The purpose of this call is to start a Python worker. The call's result is ignored. The worker starts before the merge, because the
    # first batches of a new user are usually merged by small merges, which need the worker but no MERGE.
    why_not_on_executors(SparkSettings(remote=url))
    wait_until_idle(lambda: psutil.cpu_percent(LOOK_SECONDS), time.monotonic() + idle_seconds_max)
    session = SparkSession.builder.remote(url).create()
    try:
        _merge_tiny_table(session, folder)
    finally:
        session.stop()
        shutil.rmtree(folder, ignore_errors=True)


def wait_until_idle(
    used_percent: Callable[[], float], deadline: float, clock: Callable[[], float] = time.monotonic
) -> None:
    """Waits until IDLE_LOOKS calls of `used_percent` in a row have returned less than IDLE_PERCENT, or until the deadline, a value of
    `clock`. `used_percent` waits a moment, and returns which percentage of the processors' time programs used during this moment.
    """
    idle = 0
    while idle < IDLE_LOOKS and clock() < deadline:
        idle = idle + 1 if used_percent() < IDLE_PERCENT else 0


def _merge_tiny_table(session: SparkSession, folder: Path) -> None:
    staged, table = f"parquet.`{folder / 'staged'}`", f"delta.`{folder / 'table'}`"
    session.sql("SELECT id, CAST(id AS STRING) AS label, id % 3 = 0 AS gone FROM range(20)").write.parquet(
        str(folder / "staged")
    )
    session.sql(
        f"CREATE TABLE {table} (id BIGINT, label STRING) USING delta"
        " TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    for _ in range(MERGES):
        session.sql(
            f"MERGE INTO {table} t USING {staged} s ON t.id = s.id AND t.id BETWEEN 0 AND 20"
            " WHEN MATCHED AND s.gone THEN DELETE"
            " WHEN MATCHED THEN UPDATE SET t.label = s.label"
            " WHEN NOT MATCHED AND NOT s.gone THEN INSERT (id, label) VALUES (s.id, s.label)"
        ).collect()
    session.sql(f"SELECT count(*) FROM {table}").collect()


def end_with_server(url: str) -> None:
    """Ends this process as soon as no program listens on the server's port. This function never returns, so it must run in a thread of its
    own.

    The server has ended if its port refuses a connection. Other errors, such as a time-out on a busy machine, are ignored.
    """
    server = urllib.parse.urlsplit(url)
    while True:
        try:
            socket.create_connection((server.hostname or "", server.port or 0), LOOK_SECONDS).close()
        except ConnectionRefusedError:
            os._exit(1)
        except OSError:
            pass
        time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    signal.alarm(int(sys.argv[3]))  # The signal has no handler, so it ends the process.
    threading.Thread(target=end_with_server, args=(sys.argv[1],), daemon=True).start()
    warm_up(sys.argv[1], Path(sys.argv[2]), float(sys.argv[4]))
