"""Runs an engine host and its runs until it is killed: `python -m tests.ha.engine_host CONF RUN_CONF LAKE`.

The engine has one conf/, and the run another one with another data_dir. The run thus sees only what hosts share, and nothing of the
engine's machine. The lake is a SQLite file, to which the rows of all tables are appended, as to a Delta table without a key. The file also
has the order key of the last batch. Rows up to this key are not appended again, as with `txnVersion` in a Delta table. The program prints
`active STATE` or `standby` whenever this changes.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
from pathlib import Path

import pyarrow.parquet as pq

from sluice.cdc_engine.config import SluiceConfig, load_config
from sluice.cdc_engine.contracts import OutstandingBatch
from sluice.cdc_engine.destination_files import head_of_line, run_lock
from sluice.cdc_engine.errors import SluiceError
from sluice.cdc_engine.keeping import launcher
from sluice.object_stores.options import resolved
from sluice.spark_jobs.errors import SparkJobError
from sluice.spark_jobs.staged_files.local_copy import local_copy

SCHEMA = """
CREATE TABLE IF NOT EXISTS rows (n INTEGER, host TEXT);
CREATE TABLE IF NOT EXISTS taken (up_to INTEGER);
CREATE TABLE IF NOT EXISTS acked (place TEXT, delivery INTEGER, host TEXT);
"""


def merge(config: SluiceConfig, lake: Path, batch: OutstandingBatch, host: str) -> bool:
    """Merges a batch as a run does. It holds the run lock, and checks immediately before it writes that its batch is the next one. Returns
    True if it wrote, or if there was nothing to write.
    """
    directory = config.destination_dir("shop")
    stored = config.ledger_location("shop").staged_url(batch.ledger_id, batch.path)
    with run_lock(directory, 20.0):
        with local_copy(directory / batch.path, stored, resolved(config.storage_options)) as folder:
            files = sorted(folder.glob("*.parquet"))
            tables = [pq.read_table(file, columns=["n", "_sluice_order_key"]).to_pydict() for file in files]
        rows = [row for table in tables for row in zip(table["n"], table["_sluice_order_key"], strict=True)]
        if head_of_line(directory) != batch:
            return False
        with sqlite3.connect(lake, timeout=30, isolation_level="IMMEDIATE") as connection:
            connection.execute("INSERT INTO taken SELECT -1 WHERE NOT EXISTS (SELECT 1 FROM taken)")
            (up_to,) = connection.execute("SELECT up_to FROM taken").fetchone()
            new = [(n, host) for n, key in rows if key > up_to]
            connection.executemany("INSERT INTO rows VALUES (?, ?)", new)
            connection.execute("UPDATE taken SET up_to = MAX(up_to, ?)", (batch.end.order_key,))
        return True


def step(config: SluiceConfig, lake: Path, host: str) -> str:
    """Executes one tick. Returns "active" and the state of the engine. Raises SluiceError if the engine cannot run on this host."""
    engine = launcher.get_or_start("shop")
    batch = engine.hand_out(0.3)
    if batch is not None:
        if merge(config, lake, batch, host):
            engine.ack(batch)
            with sqlite3.connect(lake, timeout=30) as connection:
                connection.execute("INSERT INTO acked VALUES (?, ?, ?)", (str(batch.end), batch.delivery, host))
        else:
            engine.rollback(batch)
    return f"active {engine.status().state}"


def main(conf: Path, run_conf: Path, lake: Path) -> None:
    os.environ["SLUICE_CONF"] = str(conf)
    config, host, reported = load_config(run_conf), conf.parent.name, ""
    with sqlite3.connect(lake, timeout=30) as connection:
        connection.executescript(SCHEMA)
    while True:
        try:
            state = step(config, lake, host)
        except SluiceError as error:
            state = "standby"
            sys.stderr.write(f"{host}: {error.code}: {error}\n")
        except SparkJobError as error:  # Another run must deliver this batch.
            sys.stderr.write(f"{host}: {error}\n")
        if state != reported:
            reported = state
            sys.stdout.write(f"{state}\n")
            sys.stdout.flush()
        threading.Event().wait(0.1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
