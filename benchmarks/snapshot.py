"""Copies a large table to Delta with a snapshot and with a bare parallel Spark JDBC read, in alternation, for `./sluice bench snapshot`.

The snapshot and the bare read read the same table of an idle MySQL, and write a Delta table with the same warm Spark. The bare read does
less: its bounds are given, it does not buffer changes, and it does not preserve types.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from rich.console import Console

from benchmarks.report import median, show, write_json
from sluice.cdc_engine.acts import snapshot as acts
from sluice.cdc_engine.config import DestinationConfig, SluiceConfig, SparkConfig
from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.destination_files import run_lock
from sluice.cdc_engine.instance.tables.table_snapshots import SnapshotCallbacks, snapshot_dependencies
from sluice.cdc_engine.meta.stored_ledger import StoredLedger
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.records.location import record_store
from sluice.cdc_engine.snapshot.groups import run_all
from sluice.cdc_engine.snapshot.record import SnapshotRecord
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.source.settings import SourceConfig
from sluice.cdc_engine.states import SnapshotState
from sluice.cdc_engine.table_meta.history.source.schema_snapshot import stable_snapshot
from sluice.cdc_engine.table_meta.table_list.writing import write_tables
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.setup import set_up
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.orchestration.run.spark_publish import spark_publish
from sluice.spark_jobs.session import SparkSettings, open_sessions

DATABASE, TABLE, ROWS_FIRST = "bench", "orders", 1000
ROUNDS, READERS = 2, 2
CREATE = (
    f"CREATE TABLE {DATABASE}.{TABLE} (id BIGINT NOT NULL PRIMARY KEY AUTO_INCREMENT, customer INT NOT NULL, price DECIMAL(10,2), "
    "at DATETIME(3), state VARCHAR(20), note VARCHAR(120))"
)
FIRST = (
    f"INSERT INTO {DATABASE}.{TABLE} (customer, price, at, state, note) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n "
    f"WHERE i < {ROWS_FIRST}) SELECT i * 7 % 100000, i / 7, NOW(3), 'open', REPEAT(MD5(i), 2) FROM n"
)
MORE = (
    f"INSERT INTO {DATABASE}.{TABLE} (customer, price, at, state, note) SELECT customer + 1, price + 1, at, state, note "
    f"FROM {DATABASE}.{TABLE} LIMIT {{}}"
)


def run(json_file: Path | None, rows: int) -> None:
    """Measures the snapshot and the bare read. Prints and writes the medians of their rows per second."""
    screen = Console()
    toolchain = set_up(("mysql-8.0.31",), extras=("jdbc",), screen=screen)
    jars = [*toolchain.delta_jars, *toolchain.extra_jars]
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder, contextlib.ExitStack() as stack:
        root = Path(folder)
        server = DatabaseServer("mysql-8.0.31", root / "mysql", options={"default_time_zone": "+00:00"})
        server.start()
        stack.callback(server.stop)
        spark = SparkConnectServer(jars, root / "spark", memory="3g")
        spark.start()
        stack.callback(spark.stop)
        screen.print(f"filling {rows} rows")
        _fill(server, rows)
        bench = _Bench(root, server, spark)
        seconds: dict[str, list[float]] = {"snapshot": [], "bare": []}
        bench.bare("warm")
        for number in range(ROUNDS):
            bench.start_at_current_position()
            seconds["snapshot"].append(_timed(bench.snapshot))
            seconds["bare"].append(_timed(lambda number=number: bench.bare(f"bare{number}")))  # type: ignore[misc]
        record = bench.record()
        figures: dict[str, Any] = {
            "rows": rows,
            "rows_per_s": rows / median(seconds["snapshot"]),
            "bare_rows_per_s": rows / median(seconds["bare"]),
            "read_seconds": record.read_at - record.reading_at,
            "publish_seconds": record.published_at - record.read_at,
            "chunks": record.chunks,
            "staged_mb": record.size_bytes / 1e6,
        }
        figures["ratio"] = figures["rows_per_s"] / figures["bare_rows_per_s"]
        show("rows of one table into Delta", [figures])
        write_json(json_file, figures)


class _Bench:
    """A destination without an engine. The cursor of its ledger is at the end of the binlog, because the server is idle."""

    def __init__(self, root: Path, server: DatabaseServer, spark: SparkConnectServer) -> None:
        self._root, self._server, self._spark = root, server, spark
        source = SourceConfig(port=server.port, user="root")
        self._config = SluiceConfig(
            data_dir=root / "data",
            lake=str(root / "lake"),
            spark=SparkConfig(remote=spark.url),
            destinations={DATABASE: DestinationConfig(name=DATABASE, source=source, include=rf"{DATABASE}\..*")},
        )
        self._directory = self._config.destination_dir(DATABASE)
        self._directory.mkdir(parents=True)
        with server.connect() as connection:
            known, position = stable_snapshot(connection, lambda name, _: name == DATABASE, lambda: _end(connection))
        write_tables(self._directory, [each.version() for each in known.tables])
        StoredLedger(record_store(self._directory), DATABASE).update(lambda ledger: ledger.set_cursor(position))

    def start_at_current_position(self) -> None:
        """Removes the lake, so that the snapshot creates a new table. The bare read creates a new table each time too."""
        shutil.rmtree(self._root / "lake", ignore_errors=True)

    def snapshot(self) -> None:
        acts.start(self._directory, [f"{DATABASE}.{TABLE}"])
        callbacks = SnapshotCallbacks(
            run_lock=lambda: run_lock(self._directory, 1.0),
            publish=self._publish,
            say=lambda _: None,
            progress=lambda _: None,
        )
        run_all(snapshot_dependencies(self._config, DATABASE, callbacks), 60.0)
        if self.record().state != SnapshotState.PUBLISHED:
            raise RuntimeError(f"not published: {self.record()}")

    def _publish(self, record: SnapshotRecord, table: TableVersion) -> int:
        return spark_publish(self._config, DATABASE, record, table, run="bench", refusal=str).label

    def bare(self, name: str) -> None:
        path = self._root / name
        with open_sessions(SparkSettings(remote=self._spark.url), 1) as sessions, self._server.connect() as connection:
            with connection.cursor() as cursor:
                cursor.execute(f"SELECT MIN(id), MAX(id) FROM {DATABASE}.{TABLE}")
                low, high = cursor.fetchone() or (0, 0)
            options = {
                # With `permitMysqlScheme`, Spark uses its dialect for MySQL, which quotes columns correctly.
                "url": f"jdbc:mysql://127.0.0.1:{self._server.port}/{DATABASE}?permitMysqlScheme&user=root&useServerPrepStmts=false",
                "driver": "org.mariadb.jdbc.Driver",
                "dbtable": TABLE,
                "partitionColumn": "id",
                "lowerBound": str(low),
                "upperBound": str(high),
                "numPartitions": str(READERS),
                "fetchsize": "10000",
            }
            rows: Any = sessions[0].spark.read.format("jdbc").options(**options).load()
            rows.write.format("delta").mode("overwrite").save(str(path))
        DeltaTable(str(path))

    def record(self) -> SnapshotRecord:
        (found,) = SnapshotRecords(self._directory).all()
        return found


def _fill(server: DatabaseServer, rows: int) -> None:
    with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
        for statement in (
            "SET SESSION sql_log_bin = 0",
            f"CREATE DATABASE {DATABASE}",
            CREATE,
            "SET SESSION cte_max_recursion_depth = 100000",
            FIRST,
        ):
            cursor.execute(statement)
        made = ROWS_FIRST
        while made < rows:
            more = min(made, rows - made, 1_000_000)
            cursor.execute(MORE.format(more))
            made += more
        cursor.execute(f"ANALYZE TABLE {DATABASE}.{TABLE}")


def _end(connection: Any) -> Position:
    with connection.cursor() as cursor:
        cursor.execute("SHOW MASTER STATUS")
        row = cursor.fetchone()
    return Position(epoch=1, file=str(row[0]), offset=int(row[1]), gtid_set=str(row[4] or ""))


def _timed(act: Callable[[], None]) -> float:
    begun = time.monotonic()
    act()
    return time.monotonic() - begun
