"""Tests that an engine needs little memory for the largest transactions, rows and tables of a real server. The engine runs in a process of
its own, whose memory is measured.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fix_servers import ServerFactory
from tests.instance import engine_process
from tests.instance.fix_destination import Captured

pytestmark = [pytest.mark.servers, pytest.mark.spark]

MEBIBYTE = 1 << 20
ROWS, ROW_BYTES = 2048, MEBIBYTE
PEAK_BYTES_MAX = 700 * MEBIBYTE
OPTIONS = {"innodb_buffer_pool_size": "64M", "binlog_cache_size": 1 << 20, "max_binlog_cache_size": 4 << 30}
# With MyISAM, the transaction in the binlog is the same, and the test does not wait for InnoDB's logs.
TABLE = "CREATE TABLE {}.huge (n INT PRIMARY KEY AUTO_INCREMENT, filler LONGBLOB) ENGINE=MyISAM"
INSERT = (
    "INSERT INTO {}.huge (filler) WITH RECURSIVE numbers AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM numbers WHERE n < {}) "
    "SELECT REPEAT(CHAR(97 + n % 26), {}) FROM numbers"
)


@pytest.mark.timeout(600)
def test_two_gigabytes_in_one_transaction_need_little_memory(fresh_mysql80: ServerFactory, tmp_path: Path) -> None:
    captured = Captured(tmp_path, fresh_mysql80(options=OPTIONS))
    captured.run(TABLE.format(captured.database))
    engine = engine_process.start(captured.conf, ROWS)
    captured.wait_until_running()
    captured.run("SET SESSION cte_max_recursion_depth = 100000", INSERT.format(captured.database, ROWS, ROW_BYTES))
    found = engine_process.finished(engine, 400)
    assert (found["rows"], found["batches"]) == (ROWS, 1), "a transaction is never split"
    assert found["bytes"] > ROWS * ROW_BYTES
    assert found["peak_bytes"] < PEAK_BYTES_MAX
    assert not list((captured.directory / "spill").iterdir()), "what was acked leaves nothing on disk"


WIDE_ROWS, WIDE_COLUMNS = 20_000, 4096
LARGE_ROWS, LARGE_ROW_BYTES = 16, 64 * MEBIBYTE
LARGE_PEAK_BYTES_MAX = 1200 * MEBIBYTE


@pytest.mark.scale
@pytest.mark.timeout(600)
def test_a_gigabyte_of_rows_of_64_megabytes_needs_memory_for_a_few_of_them(
    fresh_mysql80: ServerFactory, tmp_path: Path
) -> None:
    captured = Captured(tmp_path, fresh_mysql80(options={**OPTIONS, "max_allowed_packet": 128 * MEBIBYTE}))
    captured.run(TABLE.format(captured.database))
    engine = engine_process.start(captured.conf, LARGE_ROWS)
    captured.wait_until_running()
    captured.run(INSERT.format(captured.database, LARGE_ROWS, LARGE_ROW_BYTES))
    found = engine_process.finished(engine, 400)
    assert (found["rows"], found["batches"]) == (LARGE_ROWS, 1)
    assert found["bytes"] > LARGE_ROWS * LARGE_ROW_BYTES
    assert found["peak_bytes"] < LARGE_PEAK_BYTES_MAX


@pytest.mark.scale
@pytest.mark.timeout(600)
def test_a_table_with_as_many_columns_as_mysql_allows_needs_little_memory(
    fresh_mysql80: ServerFactory, tmp_path: Path
) -> None:
    captured = Captured(tmp_path, fresh_mysql80(options=OPTIONS))
    columns = ", ".join(f"c{number} TINYINT DEFAULT {number % 100}" for number in range(WIDE_COLUMNS - 1))
    captured.run(f"CREATE TABLE {captured.database}.huge (n INT PRIMARY KEY AUTO_INCREMENT, {columns}) ENGINE=MyISAM")
    engine = engine_process.start(captured.conf, WIDE_ROWS)
    captured.wait_until_running()
    numbers = "WITH RECURSIVE numbers AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM numbers WHERE n < {})"
    captured.run(
        "SET SESSION cte_max_recursion_depth = 100000",
        f"INSERT INTO {captured.database}.huge (c0) {numbers.format(WIDE_ROWS)} SELECT n % 100 FROM numbers",
    )
    found = engine_process.finished(engine, 400)
    assert found["rows"] == WIDE_ROWS
    assert found["peak_bytes"] < PEAK_BYTES_MAX
