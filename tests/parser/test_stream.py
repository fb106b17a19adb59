"""The parser on real servers: every transaction once, in order, over lost connections, restarts and killed dumps."""

from __future__ import annotations

import pytest

from cdc_engine.contracts import RowEventKind
from cdc_engine.parser.event_parser import RECONNECTING, STREAMING
from console.toolchain.servers import DatabaseServer
from tests.parser.recording import Capture, capturing, source_of

SERVERS = ["mysql80", "mariadb114"]


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> DatabaseServer:
    found: DatabaseServer = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def shop(server: DatabaseServer) -> DatabaseServer:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("DROP DATABASE IF EXISTS shop")
        cursor.execute("CREATE DATABASE shop")
        cursor.execute("CREATE TABLE shop.orders (id INT PRIMARY KEY, note VARCHAR(200)) ENGINE=InnoDB")
    return server


def insert(server: DatabaseServer, first: int, count: int) -> None:
    """One transaction a row."""
    with server.connect() as connection, connection.cursor() as cursor:
        for number in range(first, first + count):
            cursor.execute("INSERT INTO shop.orders VALUES (%s, %s)", (number, f"note {number}"))


def wait_for(capture: Capture, transactions: int) -> None:
    capture.sink.wait(lambda: capture.sink.transaction_count >= transactions, f"{transactions} transactions")


def test_insert_update_delete_arrive_in_order_with_their_kinds(shop: DatabaseServer) -> None:
    with capturing(source_of(shop)) as capture:
        with shop.connect(autocommit=False) as connection, connection.cursor() as cursor:
            cursor.execute("INSERT INTO shop.orders VALUES (1, 'a'), (2, 'b')")
            cursor.execute("UPDATE shop.orders SET note = 'c' WHERE id = 1")
            cursor.execute("DELETE FROM shop.orders WHERE id = 2")
            connection.commit()
        wait_for(capture, 1)
        kinds = [[kind for _, _, kind in events] for events in capture.sink.events_per_transaction()]
        assert kinds == [[RowEventKind.INSERT, RowEventKind.UPDATE, RowEventKind.DELETE]]
        assert capture.parser.position is not None
        assert capture.parser.position.gtid_set
        assert abs(capture.parser.position.time_us / 1e6 - capture.parser.counters.received_at) < 60


def test_a_killed_dump_thread_loses_and_doubles_nothing(shop: DatabaseServer) -> None:
    with capturing(source_of(shop)) as capture:
        insert(shop, 0, 50)
        wait_for(capture, 50)
        for round_ in range(2):
            with shop.connect() as connection, connection.cursor() as cursor:
                cursor.execute("SELECT id FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'")
                for (thread,) in cursor.fetchall():
                    cursor.execute(f"KILL {thread}")
            insert(shop, 1000 * (round_ + 1), 50)
            capture.states.wait(STREAMING, round_ + 2)
        wait_for(capture, 150)
        places = [places for events in capture.sink.events_per_transaction() for places in events]
        assert len(places) == len(set(places)) == 150
        assert places == sorted(places)
        assert RECONNECTING in {state for state, _ in capture.states.told}
