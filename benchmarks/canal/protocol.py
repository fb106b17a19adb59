"""Reads one binlog range with Canal's Java client, from Canal 1.1.7 and from Sluice, for `./sluice bench protocol`.

Each server runs before the client starts. The time is measured from the client's first get to its ack of the last row.
"""

from __future__ import annotations

import subprocess
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.binlog_sets import BinlogSet, make_bulk, make_oltp, prepare
from benchmarks.canal.server import ACCOUNT, canal_server, java_command
from benchmarks.engine import configuration, known_start
from benchmarks.report import median, show, write_json
from sluice.cdc_engine.config import CanalServerConfig, RingConfig, SluiceConfig
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.ports import free_port

RUNS, TRANSACTIONS, BULK_ROWS, BULK_STATEMENTS = 3, 60_000, 300_000, 30
FETCH_SIZE = 1000  # The default of Canal's client.
PROGRAM = Path(__file__).with_name("ProtocolClient.java")
DESTINATION, FILTER = "bench", r"bench\..*"
CLIENT_ID = 1001
SECONDS_MAX = 600.0
# A new consumer starts at the oldest change in the window. So the window must be large enough for a whole set.
RING_BYTES = 256 << 20


def run(json_file: Path | None, *, transactions: int = TRANSACTIONS, bulk: int = BULK_ROWS, runs: int = RUNS) -> None:
    """Measures each set `runs` times with both servers, in alternation, and reports medians. `sluice_rows_per_s` and `canal_rows_per_s`
    are the rates for all sets together.
    """
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as name:
        folder = Path(name)
        with DatabaseServer("mysql-8.0.31", folder / "mysql", options={"max_binlog_size": 1 << 30}) as server:
            cursor = server.connect().cursor()
            prepare(cursor)
            for statement in ACCOUNT:
                cursor.execute(statement)
            makers = (partial(make_oltp, cursor, transactions), partial(make_bulk, cursor, bulk, BULK_STATEMENTS))
            # A batch contains all changes up to the end of the binlog. So each set is measured before the next set is created.
            record = [measure(server, make(), folder, runs) for make in makers]
    show("protocol", record)
    rows = sum(row["rows"] for row in record)
    rates = {
        f"{who}_rows_per_s": round(rows / sum(row["rows"] / row[f"{who}_rows_per_s"] for row in record), 1)
        for who in ("sluice", "canal")
    }
    write_json(json_file, {**rates, "sets": record, "runs": runs, "fetch_size": FETCH_SIZE})


def measure(server: DatabaseServer, binlog: BinlogSet, folder: Path, runs: int) -> dict[str, float]:
    sluice, canal = [], []
    for _ in range(runs):
        canal.append(canal_seconds(server, binlog, folder))
        sluice.append(sluice_seconds(server, binlog, folder))
    rates = {"sluice_rows_per_s": binlog.rows / median(sluice), "canal_rows_per_s": binlog.rows / median(canal)}
    return {
        "rows": binlog.rows,
        "transactions": binlog.transactions,
        **{name: round(rate, 1) for name, rate in rates.items()},
        "sluice_to_canal": round(rates["sluice_rows_per_s"] / rates["canal_rows_per_s"], 2),
    }


def canal_seconds(server: DatabaseServer, binlog: BinlogSet, folder: Path) -> float:
    position = (binlog.file, binlog.start)
    with canal_server(server.port, DESTINATION, position, FILTER, folder / "canal.log") as port:
        return client_seconds(port, binlog.rows)


def sluice_seconds(server: DatabaseServer, binlog: BinlogSet, folder: Path) -> float:
    plain = configuration(server, binlog, folder)
    port = free_port()
    served = plain.destinations[DESTINATION].model_copy(
        update={"canal_server": CanalServerConfig(port=port), "ring": RingConfig(bytes_max=RING_BYTES)}
    )
    config: SluiceConfig = plain.model_copy(update={"destinations": {DESTINATION: served}})
    known_start(config)[1].release()
    engine = Engine(config, DESTINATION)
    engine.start()
    try:
        return client_seconds(port, binlog.rows)
    finally:
        engine.stop()


def client_seconds(port: int, rows: int) -> float:
    words = [str(port), DESTINATION, FILTER, str(rows), str(FETCH_SIZE)]
    done = subprocess.run(
        [*java_command("canal-client"), str(PROGRAM), *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    if done.returncode:
        raise RuntimeError(f"Canal's client did not take the rows (it needs a JDK): {done.stderr[-2000:]}")
    taken, nanoseconds = map(int, done.stdout.split())
    if taken != rows:
        raise RuntimeError(f"Canal's client took {taken} rows where there are {rows}")
    return nanoseconds / 1e9
