"""Measures how fast rows of each column type are staged, for `./sluice bench types`. For each type there is a table with an int key and a
column of the type.

Every row has a different value, if the type has enough values. Sluice reads from a live server as in production (parser, sink,
ring), and stages each batch to Parquet. The start of the engine is not measured.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.binlog_sets import BinlogSet, position
from benchmarks.engine import ack_unstaged, configuration, known_start, never_rewound
from benchmarks.report import median, show, write_json
from sluice.cdc_engine.instance.batches.stream_batches import StreamBatches
from sluice.cdc_engine.limits import BATCH_EVENTS_MAX
from sluice.cdc_engine.staging.staging import stage
from sluice.console.toolchain.database.server import DatabaseServer

RUNS, ROWS = 3, 200_000
DEADLINE_SECONDS = 300.0
MYSQL, MARIADB = "mysql-8.0.31", "mariadb-11.4.5"
OPTIONS = {"max_binlog_size": 1 << 30, "binlog_expire_logs_seconds": 86400 * 7}
DOCUMENT = "JSON_OBJECT('id', i, 'price', i / 4e0, 'name', CONCAT('näme ', i), 'tags', JSON_ARRAY('a', NULL, TRUE))"


@dataclasses.dataclass(frozen=True)
class Kind:
    """A column type. `name` is its name in the report. `declared` is the column definition, and `value` is SQL for the value of row i.
    `server` is the server that has the type.
    """

    name: str
    declared: str
    value: str
    server: str = MYSQL


KINDS = (
    Kind("tinyint", "TINYINT", "i % 128"),
    Kind("int", "INT", "i"),
    Kind("bigint unsigned", "BIGINT UNSIGNED", "18446744073709551615 - i"),
    Kind("float", "FLOAT", "i / 7e0"),
    Kind("double", "DOUBLE", "i / 7e0"),
    Kind("decimal(12,4)", "DECIMAL(12,4)", "i / 7"),
    Kind("decimal(65,30)", "DECIMAL(65,30)", "i / 7"),
    Kind("bit(20)", "BIT(20)", "i"),
    Kind("year", "YEAR", "1901 + i % 200"),
    Kind("date", "DATE", "DATE '2000-01-01' + INTERVAL i % 20000 DAY"),
    Kind("datetime(3)", "DATETIME(3)", "TIMESTAMP '2000-01-01 00:00:00' + INTERVAL i * 1000 MICROSECOND"),
    Kind("timestamp(6)", "TIMESTAMP(6)", "TIMESTAMP '2000-01-01 00:00:00' + INTERVAL i MICROSECOND"),
    Kind("time(3)", "TIME(3)", "SEC_TO_TIME(i % 3000000 + 0.125)"),
    Kind("char(40)", "CHAR(40)", "SHA1(i)"),
    Kind("varchar utf8mb4", "VARCHAR(60) CHARACTER SET utf8mb4", "CONCAT('näme 日本 ', i)"),
    Kind("varchar latin1", "VARCHAR(60) CHARACTER SET latin1", "CONCAT('näme ', i)"),
    Kind("varchar gbk", "VARCHAR(60) CHARACTER SET gbk", "CONCAT('简体 ', i)"),
    Kind("varchar sjis", "VARCHAR(60) CHARACTER SET sjis", "CONCAT('日本 ', i)"),
    Kind("varchar utf16", "VARCHAR(60) CHARACTER SET utf16", "CONCAT('näme 日本 ', i)"),
    Kind("text", "TEXT", "CONCAT(SHA2(i, 512), SHA1(i))"),
    Kind("binary(16)", "BINARY(16)", "UNHEX(MD5(i))"),
    Kind("varbinary(40)", "VARBINARY(40)", "UNHEX(SHA1(i))"),
    Kind("blob", "BLOB", "UNHEX(SHA2(i, 512))"),
    Kind("enum", "ENUM('new','paid','sent','returned')", "1 + i % 4"),
    Kind("set", f"SET({','.join(repr(f'flag{bit}') for bit in range(40))})", "i * 5234567 % 1099511627776"),
    Kind("json", "JSON", DOCUMENT),
    Kind("json doubles", "JSON", "JSON_ARRAY(i / 7e0, i * 1e20 / 3, SQRT(i))"),
    Kind("point", "POINT", "POINT(i, -i)"),
    Kind("uuid", "UUID", "UUID()", MARIADB),
    Kind("inet4", "INET4", "INET_NTOA(i * 4001)", MARIADB),
    Kind("inet6", "INET6", "CONCAT('2001:db8::', HEX(i % 65536), ':', HEX(i DIV 7))", MARIADB),
    Kind("varchar compressed", "VARCHAR(200) COMPRESSED", "REPEAT(SHA1(i), 4)", MARIADB),
)


def run(json_file: Path | None, *, runs: int = RUNS, rows: int = ROWS, names: tuple[str, ...] = ()) -> None:
    """Measures all types, or the named ones, `runs` times each. Reports medians."""
    record: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        for version in (MYSQL, MARIADB):
            kinds = [kind for kind in KINDS if kind.server == version and (not names or kind.name in names)]
            if kinds:
                with DatabaseServer(version, Path(folder) / version, options=OPTIONS) as server:
                    record |= _measured(server, kinds, Path(folder), rows, runs)
    show("types", [{"type": name, **row} for name, row in record.items()])
    write_json(json_file, {"types": record, "runs": runs})


def _measured(
    server: DatabaseServer, kinds: list[Kind], folder: Path, rows: int, runs: int
) -> dict[str, dict[str, Any]]:
    cursor = server.connect(charset="utf8mb4").cursor()
    for statement in ("CREATE DATABASE bench", "USE bench", "CREATE TABLE numbers (i INT PRIMARY KEY)"):
        cursor.execute(statement)
    cursor.execute("INSERT INTO numbers VALUES (1)")
    while (made := int(cursor.execute("SELECT i FROM numbers"))) < rows:
        cursor.execute(f"INSERT INTO numbers SELECT i + {made} FROM numbers WHERE i <= {rows - made}")
    record = {}
    for kind in kinds:
        binlog = _written(cursor, kind, rows)
        staged_seconds(server, binlog, folder)  # The first call compiles or loads the kernels, so it is not measured.
        seconds = [staged_seconds(server, binlog, folder) for _ in range(runs)]
        record[kind.name] = {
            "staged_rows_per_s": median([rows / each for each in seconds]),
            "staged_mb_per_s": median([binlog.bytes / each / 1e6 for each in seconds]),
        }
    return record


def _written(cursor: Any, kind: Kind, rows: int) -> BinlogSet:
    """Writes a set into a separate binlog file, which is the last file while the set is measured."""
    cursor.execute("DROP TABLE IF EXISTS t")
    cursor.execute(f"CREATE TABLE t (id INT PRIMARY KEY, c {kind.declared} NOT NULL)")
    cursor.execute("FLUSH BINARY LOGS")
    file, start = position(cursor)
    cursor.execute(f"INSERT INTO t SELECT i, {kind.value} FROM numbers")
    return BinlogSet(kind.name, file, start, position(cursor)[1], rows, 1)


def staged_seconds(server: DatabaseServer, binlog: BinlogSet, folder: Path) -> float:
    """Returns the seconds from the start of the dump until the last batch of the set is staged and acked."""
    config = configuration(server, binlog, folder)
    parts, lease = known_start(config)
    stream = StreamBatches("bench", parts.store, parts.meta, never_rewound)
    limits, directory = config.destinations["bench"].batch, config.destination_dir("bench") / "staging"
    begun = time.perf_counter()
    parts.parser.start(parts.meta.ledger.cursor)
    try:
        while time.perf_counter() - begun < DEADLINE_SECONDS:
            batch = stream.get(limits.bytes_max, BATCH_EVENTS_MAX, timeout_seconds=1.0)
            if not batch.empty:
                staged = stage(batch, "bench", 1, directory)
                assert not staged.stopped, staged.stopped[0].reason
            ack_unstaged(stream, parts.meta, batch)
            if batch.end is not None and batch.end.offset >= binlog.end:
                return time.perf_counter() - begun
        raise TimeoutError(f"the rows of {binlog.name} were not staged in {DEADLINE_SECONDS} s: {parts.parser.reason}")
    finally:
        parts.parser.stop()
        lease.release()
