"""Tests the contents of transactions on real servers: XA, rollbacks, savepoints, engines without transactions, bulk loads, temporary
tables.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pymysql
import pytest

from sluice.cdc_engine.states import TableState
from sluice.console.toolchain.database.server import DatabaseServer
from tests.fidelity.pipeline import SERVERS, Pipeline, run
from tests.fidelity.replay import assert_replayed, pipeline_with
from tests.fix_servers import ServerFactory
from tests.waiting import wait_for

pytestmark = pytest.mark.servers

ORDERS = "CREATE TABLE orders (id INT PRIMARY KEY, note LONGTEXT) ENGINE=InnoDB"
LOG = "CREATE TABLE log (id INT PRIMARY KEY, note VARCHAR(100)) ENGINE=MyISAM"


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> DatabaseServer:
    found: DatabaseServer = request.getfixturevalue(request.param)
    return found


def xa(server: DatabaseServer, database: str, name: str, *statements: str, before: str = "SET @plain = 1") -> None:
    """Prepares an XA transaction and closes the connection. Afterwards, the prepared transaction belongs to no connection."""
    begin = (before, f"USE {database}", f"XA START '{name}'", *statements, f"XA END '{name}'", f"XA PREPARE '{name}'")
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in begin:
            cursor.execute(statement)


def test_xa_transactions_count_when_they_are_committed_fidelity(server: DatabaseServer, tmp_path: Path) -> None:
    pipeline = pipeline_with(
        server, tmp_path, "xa", ORDERS, "INSERT INTO orders VALUES (1, 'one'), (2, 'two'), (3, 'three')"
    )
    xa(server, "xa", "later", "UPDATE orders SET note = 'later' WHERE id = 1", "DELETE FROM orders WHERE id = 2")
    xa(server, "xa", "never", "UPDATE orders SET note = 'never' WHERE id = 3", "INSERT INTO orders VALUES (4, 'never')")
    run(server, "USE xa", "INSERT INTO orders VALUES (5, 'between')", "XA ROLLBACK 'never'")
    run(server, "USE xa", "UPDATE orders SET note = 'free again' WHERE id = 3")
    compressed = "SET SESSION binlog_transaction_compression = ON" if "mysql-8" in server.version else "SET @plain = 1"
    xa(server, "xa", "small", "INSERT INTO orders VALUES (6, REPEAT('x', 3000))", before=compressed)
    run(server, "XA COMMIT 'small'")
    run(
        server,
        "USE xa",
        compressed,
        "XA START 'p'",
        "UPDATE orders SET note = 'p' WHERE id = 5",
        "XA END 'p'",
        "XA COMMIT 'p' ONE PHASE",
    )
    run(server, "USE xa", "XA COMMIT 'later'", "INSERT INTO orders VALUES (2, 'again')")
    run(
        server,
        "USE xa",
        "XA START 'at once'",
        "UPDATE orders SET note = 'once'",
        "XA END 'at once'",
        "XA COMMIT 'at once' ONE PHASE",
    )
    assert_replayed(pipeline, "orders")


def test_rollbacks_and_engines_without_transactions_fidelity(server: DatabaseServer, tmp_path: Path) -> None:
    pipeline = pipeline_with(server, tmp_path, "undone", ORDERS, LOG)
    run(
        server,
        *(
            "USE undone",
            "BEGIN",
            "INSERT INTO orders VALUES (1, 'kept')",
            "SAVEPOINT a",
            "INSERT INTO orders VALUES (2, 'undone')",
        ),
        *("ROLLBACK TO a", "INSERT INTO orders VALUES (3, 'kept')", "RELEASE SAVEPOINT a", "COMMIT"),
        *("BEGIN", "INSERT INTO orders VALUES (4, 'undone')", "ROLLBACK"),
        *(
            "INSERT INTO log VALUES (1, 'a'), (2, 'b')",
            "UPDATE log SET note = 'c' WHERE id = 2",
            "DELETE FROM log WHERE id = 1",
        ),
    )
    assert_replayed(pipeline, "orders", "log")


@pytest.mark.parametrize("version", ["mysql-5.7.22", "mysql-8.0.31", "mariadb-10.11.5", "mariadb-11.4.5"])
def test_defect_rows_that_a_transaction_undoes_within_the_binlog_are_left_out_fidelity(
    version: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Defect 55: a transaction whose undone rows are in the binlog stopped the destination with UNKNOWN_EVENT.

    MySQL 5.7 and MariaDB log undone rows of a transaction that creates or drops a temporary table, or that writes a table of an engine
    without transactions. MySQL 8.0 logs none of these rows. With GTIDs, MySQL refuses such transactions.
    """
    if version.startswith("mariadb"):
        server = request.getfixturevalue(version.replace("-10.11.5", "1011").replace("-11.4.5", "114"))
    else:
        off = {"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"}
        server = request.getfixturevalue("fresh_server")(version, off)
    pipeline = pipeline_with(
        server, tmp_path, "logged", ORDERS, LOG, "INSERT INTO orders VALUES (1, 'one'), (2, 'two')"
    )
    begin = ("USE logged", "BEGIN", "UPDATE orders SET note = CONCAT(note, '!')")
    temporary = ("CREATE TEMPORARY TABLE passing (id INT PRIMARY KEY)", "DROP TEMPORARY TABLE passing")
    run(
        server,
        *begin,
        "INSERT INTO orders VALUES (3, 'undone')",
        *temporary,
        "DELETE FROM orders WHERE id = 1",
        "ROLLBACK",
    )
    run(server, *begin, "INSERT INTO log VALUES (1, 'stays')", "INSERT INTO orders VALUES (4, 'undone')", "ROLLBACK")
    run(
        server,
        *(*begin, "SAVEPOINT a", "INSERT INTO orders VALUES (5, 'undone')", "INSERT INTO log VALUES (2, 'stays')"),
        *("DELETE FROM orders WHERE id = 2", "ROLLBACK TO a", "INSERT INTO orders VALUES (6, 'kept')", "COMMIT"),
    )
    run(
        server,
        *(*begin, *temporary, "SAVEPOINT a", "INSERT INTO orders VALUES (7, REPEAT('undone', 2000000))", *temporary),
        *("ROLLBACK TO a", "INSERT INTO orders VALUES (8, 'kept')", "COMMIT"),
    )
    run(
        server,
        *("SET sql_mode = 'ANSI_QUOTES'", *begin, *temporary, 'SAVEPOINT "a"', "INSERT INTO orders VALUES (9, 'kept')"),
        *('SAVEPOINT "B`c"', "INSERT INTO orders VALUES (10, 'undone')", 'ROLLBACK TO "b`C"', "COMMIT"),
    )
    run(
        server,
        *("SET NAMES gbk", *begin, *temporary, "INSERT INTO orders VALUES (11, 'kept')", "SAVEPOINT `国`"),
        *("INSERT INTO orders VALUES (12, 'undone')", "ROLLBACK TO `国`", "COMMIT"),
        charset="gbk",
    )
    assert_replayed(pipeline, "orders", "log")


@pytest.mark.parametrize("version", ["mariadb-10.11.5", "mariadb-11.4.5"])
def test_defect_rows_without_transactions_are_kept_on_a_replica_of_mariadb_fidelity(
    version: str, fresh_server: ServerFactory, tmp_path: Path
) -> None:
    """Defect 1022, on real servers: rows of MyISAM tables between undone rows were lost.

    The master logs statements. The replica executes them, and logs the rows of both engines in one transaction.
    """
    master = fresh_server(version, {"binlog_format": "STATEMENT", "server_id": 11})
    replica = fresh_server(version, {"log_slave_updates": "ON", "server_id": 12})
    follow = f"CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {master.port}, MASTER_USER = 'root'"
    run(replica, f"{follow}, MASTER_SSL = 0, MASTER_USE_GTID = slave_pos", "START SLAVE")
    run(master, "CREATE DATABASE followed", "USE followed", ORDERS, LOG, "INSERT INTO log VALUES (1, 'follows')")
    wait_for("the replica follows", lambda: requested(replica, "SELECT * FROM followed.log"))
    pipeline = Pipeline.of(replica, "followed", tmp_path)
    run(
        master,
        *("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ", "USE followed", "DELETE FROM log", "BEGIN"),
        *("INSERT INTO orders VALUES (1, 'kept')", "SAVEPOINT a", "INSERT INTO orders VALUES (2, 'undone')"),
        *("INSERT INTO log VALUES (2, 'stays')", "ROLLBACK TO a", "INSERT INTO orders VALUES (3, 'kept')", "COMMIT"),
    )
    wait_for("the replica follows", lambda: requested(replica, "SELECT * FROM followed.orders"))
    assert_replayed(pipeline, "orders", "log")


def requested(server: DatabaseServer, query: str) -> tuple[tuple[Any, ...], ...]:
    """Returns the rows of a query, or no row if the server has no such database or table."""
    missing = contextlib.suppress(pymysql.ProgrammingError, pymysql.OperationalError)
    with server.connect() as connection, connection.cursor() as cursor, missing:
        cursor.execute(query)
        return tuple(cursor.fetchall())
    return ()


def test_bulk_loads_temporary_tables_and_written_out_statements_fidelity(
    server: DatabaseServer, tmp_path: Path
) -> None:
    pipeline = pipeline_with(server, tmp_path, "loaded", ORDERS)
    rows = tmp_path / "rows.txt"
    rows.write_text("".join(f"{number}\tline {number}\n" for number in range(500)))
    mysql = "SET SESSION binlog_rows_query_log_events = ON"
    mariadb = "SET SESSION binlog_annotate_row_events = ON"
    with server.connect(local_infile=True) as connection, connection.cursor() as cursor:
        cursor.execute("SET GLOBAL local_infile = 1")
        cursor.execute(mariadb if "mariadb" in server.version else mysql)
        cursor.execute(f"LOAD DATA LOCAL INFILE '{rows}' INTO TABLE loaded.orders")
        cursor.execute("CREATE TEMPORARY TABLE loaded.passing (id INT PRIMARY KEY, note TEXT)")
        cursor.execute("INSERT INTO loaded.passing VALUES (1000, 'passing')")
        cursor.execute("UPDATE loaded.orders SET note = 'changed' WHERE id < 10")
        cursor.execute("INSERT INTO loaded.orders SELECT * FROM loaded.passing")
        cursor.execute("DROP TEMPORARY TABLE loaded.passing")
    assert assert_replayed(pipeline, "orders")["orders"].num_rows == 500 + 10 + 1


def test_events_larger_than_a_packet_fidelity(server: DatabaseServer, tmp_path: Path) -> None:
    """From 16 MiB on, an event arrives in several packets."""
    pipeline = pipeline_with(server, tmp_path, "vast", ORDERS)
    sizes = (16_777_180, 17_000_000)
    with server.connect(max_allowed_packet=1 << 26) as connection, connection.cursor() as cursor:
        for number, size in enumerate(sizes):
            cursor.execute("INSERT INTO vast.orders VALUES (%s, REPEAT('v', %s))", (number, size))
    assert_replayed(pipeline, "orders")


def test_a_captured_table_out_of_row_format_stops_fidelity(server: DatabaseServer, tmp_path: Path) -> None:
    pipeline = pipeline_with(server, tmp_path, "textual", ORDERS, "CREATE TABLE other (a INT)")
    statements = ("SET SESSION binlog_format = 'STATEMENT'", "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    run(server, *statements, "INSERT INTO textual.orders VALUES (2, 'as text')")
    run(server, "INSERT INTO textual.other VALUES (3)")
    staged = pipeline.staged()
    (stop,) = staged.stopped
    assert (stop.table, stop.state) == ("orders", TableState.STATEMENT_FORMAT)
    assert [table.table for table in staged.manifest.tables] == ["other"], "the other table goes on"
