"""Tests on real servers that all images of a transaction have one order key, with any start of the batch, any kind of connection and any
filter. Transactions with very many rows are tested too.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from sluice.batch_manifest.values import ChangesSegment, SchemaSegment
from sluice.cdc_engine.binlog.rows.decoder import ORDER_KEY
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.staging import StagingResult
from sluice.cdc_engine.staging.segment_writer import ROW
from sluice.console.toolchain.database.options import Options
from sluice.console.toolchain.database.server import DatabaseServer
from tests.fidelity.pipeline import SERVERS, run
from tests.fidelity.replay import pipeline_with
from tests.fidelity.rows.test_transactions import xa
from tests.fix_servers import ServerFactory
from tests.staging.staged_rows import read_rows

pytestmark = pytest.mark.servers

ORDERS = "CREATE TABLE orders (id INT PRIMARY KEY, note LONGTEXT) ENGINE=InnoDB"
FAR = "CREATE TABLE far (id INT PRIMARY KEY) ENGINE=InnoDB"
FAR_LOG = "CREATE TABLE far_log (n INT) ENGINE=InnoDB"
LOG = "CREATE TABLE log (n INT, note TEXT) ENGINE=InnoDB"
DIGITS = "(SELECT 0 d UNION SELECT " + " UNION SELECT ".join("123456789") + ")"
Keys = dict[str, list[int]]


def numbers(count_digits: int) -> str:
    """Returns a query that gives 10 to the power of `count_digits` numbers."""
    names = "abcdef"[:count_digits]
    sum_of = " + ".join(f"{name}.d * {10**index}" for index, name in enumerate(names))
    return f"SELECT {sum_of} FROM {', '.join(f'{DIGITS} {name}' for name in names)}"


def first_half(database: str) -> list[str]:
    return [
        f"USE {database}",
        "INSERT INTO orders VALUES (1, 'one'), (2, 'two')",
        *("BEGIN", "INSERT INTO orders VALUES (3, 'three')", "INSERT INTO log VALUES (1, 'a'), (1, 'a')"),
        *("UPDATE orders SET id = id + 10", "DELETE FROM log WHERE n = 1", "COMMIT"),
    ]


def second_half(server: DatabaseServer, database: str) -> list[str]:
    """Returns the second half of the statements. CREATE TABLE … SELECT is one transaction or two, depending on the server. MySQL 5.7 with
    GTIDs refuses it, so it is left out there.
    """
    selects = (
        [] if "mysql-5" in server.version else ["CREATE TABLE made (PRIMARY KEY (id)) SELECT id, note FROM orders"]
    )
    compressed = "SET SESSION binlog_transaction_compression = ON"
    return [
        f"USE {database}",
        "UPDATE orders SET note = REPEAT('x', 50)",
        *selects,
        "INSERT INTO log SELECT id, note FROM orders",
        *([compressed] if "mysql-8" in server.version else []),
        *(each.replace("made", "made_too") for each in selects),
        "INSERT INTO log SELECT id, REPEAT('same', 500) FROM orders",
        "XA COMMIT 'far'",
        "DELETE FROM log",
    ]


def keys_of(staged: StagingResult) -> Keys:
    """Returns a mapping of each table to the order keys of its images. Fails if the keys or the row numbers are not in order."""
    assert not staged.stopped
    found: Keys = {}
    for table in staged.manifest.tables:
        last, row = -1, 0
        for segment in table.segments:
            if isinstance(segment, SchemaSegment):
                assert segment.order_key > last
                last = segment.order_key
            if isinstance(segment, ChangesSegment):
                rows = read_rows(staged.path, segment)
                keys: list[Any] = rows[ORDER_KEY].to_pylist()
                assert keys == sorted(keys)
                assert last < keys[0]
                assert rows[ROW].to_pylist() == list(range(row + 1, row + rows.num_rows + 1))
                found.setdefault(table.table, []).extend(keys)
                last, row = keys[-1], row + rows.num_rows
    return found


def assert_one_key_a_transaction(server: DatabaseServer, folder: Path) -> None:
    pipeline = pipeline_with(server, folder, "placed", ORDERS, LOG, FAR, FAR_LOG)
    run(server, *first_half("placed"))
    middle = pipeline.staged().manifest.end
    xa(server, "placed", "far", "INSERT INTO far VALUES (7), (8)", "INSERT INTO far_log VALUES (7), (7)")
    run(server, *second_half(server, "placed"))
    whole = keys_of(pipeline.staged())
    orders, log = whole["orders"], whole["log"]
    assert [len(set(each)) for each in (orders[:2], orders[2:9], orders[9:])] == [1] * 3
    assert len(set(orders)) == 3
    assert set(log[:4]) == {orders[2]}, "both tables have the transaction's key"
    assert set(whole["far"] + whole["far_log"]) == {whole["far"][0]}, "and so it is in the XA transaction"
    assert log[-7] < whole["far"][0] < log[-6], "which is where it was committed"
    position = Position.from_json(middle)
    for begin in (position, dataclasses.replace(position, gtid_set="")):
        later = keys_of(dataclasses.replace(pipeline, begin=begin, deliveries=pipeline.deliveries + 10).staged())
        for table, keys in later.items():
            assert keys == whole[table][-len(keys) :]
        assert len(later["orders"]) == 3
    alone = keys_of(pipeline.staged(left_out={"placed.log": -1}))
    assert alone == {table: keys for table, keys in whole.items() if table != "log"}


@pytest.mark.parametrize("name", SERVERS)
def test_a_transaction_has_one_order_key_in_any_reading_identity(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    assert_one_key_a_transaction(request.getfixturevalue(name), tmp_path)


@pytest.mark.parametrize("version", ["mysql-8.0.31", "mysql-5.7.22"])
def test_a_transaction_without_gtid_has_one_order_key_identity(
    version: str, fresh_server: ServerFactory, tmp_path: Path
) -> None:
    off: Options = {"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"}
    assert_one_key_a_transaction(fresh_server(version, off), tmp_path)


def test_a_million_rows_in_one_xa_transaction_have_its_position_identity(
    mysql80: DatabaseServer, tmp_path: Path
) -> None:
    """The rows have the order key of the XA COMMIT, although the XA COMMIT has only about 40 bytes in the file."""
    pipeline = pipeline_with(mysql80, tmp_path, "million", "CREATE TABLE many (n INT PRIMARY KEY) ENGINE=InnoDB", LOG)
    xa(mysql80, "million", "vast", f"INSERT INTO many {numbers(6)}")
    run(mysql80, "USE million", "INSERT INTO log VALUES (1, 'between')", "XA COMMIT 'vast'")
    keys = keys_of(pipeline.staged())
    assert (len(keys["many"]), len(set(keys["many"]))) == (1_000_000, 1)
    assert keys["many"][0] > keys["log"][0]


def test_equal_rows_of_a_compressed_transaction_are_all_there_identity(mysql80: DatabaseServer, tmp_path: Path) -> None:
    """The table has no key and gets 100 MB of equal rows, which are only some ten kilobytes in the compressed transaction."""
    pipeline = pipeline_with(mysql80, tmp_path, "alike", "CREATE TABLE alike (x VARCHAR(1000)) ENGINE=InnoDB")
    before = binlog_bytes(mysql80)
    run(
        mysql80,
        "USE alike",
        "SET SESSION binlog_transaction_compression = ON",
        f"INSERT INTO alike SELECT REPEAT('x', 1000) FROM ({numbers(5)}) AS n",
    )
    assert binlog_bytes(mysql80) - before < 1 << 20
    keys = keys_of(pipeline.staged())
    assert (len(keys["alike"]), len(set(keys["alike"]))) == (100_000, 1)


def binlog_bytes(server: DatabaseServer) -> int:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW MASTER STATUS")
        row = cursor.fetchone()
    assert row is not None
    return int(row[1])
