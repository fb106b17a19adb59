"""Tests one transaction of 2 GB from a real server, through a whole engine in a process of its own, which never uses 700 MB."""

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
# MyISAM: the transaction in the binlog is the same, and the test does not wait for InnoDB's logs
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
