"""Tests that compressed transactions (MySQL) and compressed events (MariaDB) give the same rows as plain ones, in the same order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sluice.cdc_engine import limits
from sluice.console.toolchain.database.server import DatabaseServer
from tests.fidelity.pipeline import run
from tests.fidelity.replay import assert_replayed, pipeline_with

pytestmark = pytest.mark.servers

ORDERS = "CREATE TABLE orders (id INT PRIMARY KEY, note LONGTEXT, n INT) ENGINE=InnoDB"
PAIRS = "CREATE TABLE pairs (a BIGINT PRIMARY KEY, b INT, c INT) ENGINE=InnoDB"
DIGITS = "(SELECT 0 d UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 UNION SELECT 6 UNION SELECT 7)"
PAIRS_32768 = (
    "INSERT INTO pairs SELECT a.d * 4096 + b.d * 512 + c.d * 64 + e.d * 8 + f.d, 0, 7 FROM "
    + ", ".join(f"{DIGITS} {name}" for name in "abcef")
    + " ORDER BY 1"
)
SMALL = [f"INSERT INTO orders VALUES ({number}, REPEAT('x', {number * 90}), 0)" for number in range(30)]
CHANGES = [
    *SMALL,
    "BEGIN",
    "UPDATE orders SET n = n + 1",
    "UPDATE orders SET n = n + 1 WHERE id % 2 = 0",
    "UPDATE orders SET id = id + 1000 WHERE id < 5",
    "DELETE FROM orders WHERE id > 25 AND id < 30",
    "INSERT INTO orders VALUES (26, 'again', 1)",
    "COMMIT",
    PAIRS_32768,
    "UPDATE pairs SET b = 1",
    "DELETE FROM pairs WHERE a % 3 = 0",
]
LARGE = "INSERT INTO orders VALUES (5000, REPEAT('abcdefgh', 800000), 1), (5001, REPEAT('y', 6000000), 2)"


def test_compressed_transactions_are_what_select_returns_fidelity(mysql80: DatabaseServer, tmp_path: Path) -> None:
    pipeline = pipeline_with(mysql80, tmp_path, "payloads", ORDERS, PAIRS)
    on, off = "SET SESSION binlog_transaction_compression = ON", "SET SESSION binlog_transaction_compression = OFF"
    plain = "INSERT INTO orders VALUES (7000, 'plain', 0)"
    run(mysql80, "USE payloads", on, *CHANGES, off, plain, on, LARGE, "UPDATE orders SET note = 'z' WHERE id = 5000")
    found = assert_replayed(pipeline, "orders", "pairs")
    assert found["pairs"].num_rows == 2 * 32768 + 10923


def test_a_transaction_larger_than_a_buffer_is_read_in_pieces_fidelity(
    mysql80: DatabaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the smallest buffers, the images and their order keys are the same."""
    pipeline = pipeline_with(mysql80, tmp_path, "pieces", ORDERS, PAIRS)
    run(mysql80, "USE pieces", "SET SESSION binlog_transaction_compression = ON", *CHANGES)
    whole = assert_replayed(pipeline, "orders", "pairs")
    monkeypatch.setattr(limits, "READ_BUFFER_BYTES", 3000)
    pieces = assert_replayed(pipeline, "orders", "pairs")
    assert all(pieces[table].equals(whole[table]) for table in whole)


@pytest.mark.parametrize("name", ["mariadb1011", "mariadb114"])
def test_compressed_events_of_mariadb_are_what_select_returns_fidelity(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server: DatabaseServer = request.getfixturevalue(name)
    pipeline = pipeline_with(server, tmp_path, "compressed", ORDERS, PAIRS)
    before = settings(server)
    run(server, "SET GLOBAL log_bin_compress = ON", "SET GLOBAL log_bin_compress_min_len = 10")
    try:
        added = "ALTER TABLE orders ADD added VARCHAR(200) COMMENT 'a statement that is long enough to be compressed as well'"
        run(server, "USE compressed", *CHANGES, LARGE, added, "UPDATE orders SET added = 'here'")
        pipeline.staged()  # The history processes the ALTER here.
        found = assert_replayed(pipeline, "pairs")
        assert found["pairs"].num_rows == 2 * 32768 + 10923
    finally:
        run(server, *(f"SET GLOBAL {variable} = {value}" for variable, value in before.items()))


def settings(server: DatabaseServer) -> dict[str, Any]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@log_bin_compress, @@log_bin_compress_min_len")
        row = cursor.fetchone()
    assert row is not None
    return dict(zip(("log_bin_compress", "log_bin_compress_min_len"), row, strict=True))
