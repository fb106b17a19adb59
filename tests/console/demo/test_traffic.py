"""Tests that the traffic is the same after the same start, and that a real server executes every statement of it."""

from __future__ import annotations

import contextlib
import time
from itertools import islice
from typing import Any

import pytest

from sluice.console.demo.pace import TrafficThread, load_shop, run_transaction
from sluice.console.demo.schema import (
    DATABASE,
    TABLES,
    add_column_statement,
    create_database_statement,
    create_statements,
    old_statements,
)
from sluice.console.demo.traffic import DemoTraffic, Shop, Transaction
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.errors import SetupError
from tests.fix_servers import ServerFactory


def drawn(seed: str, count: int) -> list[Transaction]:
    traffic = DemoTraffic(Shop(), seed)
    return [*traffic.first(), *(traffic.next() for _ in range(count))]


def test_the_same_seed_draws_the_same_transactions() -> None:
    assert drawn("one", 400) == drawn("one", 400)
    assert drawn("one", 400) != drawn("two", 400)


def test_every_shape_of_change_occurs() -> None:
    statements = [sql for transaction in drawn("one", 800) for sql, _ in transaction]
    for table in set(TABLES) - {"markers"}:
        assert any(f"shop.{table}" in sql for sql in statements), table
    for shape in (
        "SET sku = %s WHERE sku",
        "SET id = %s WHERE id",
        "DELETE FROM shop.carts",
        "UPDATE shop.page_views",
        "DELETE FROM shop.page_views",
        "SET line = line + 100",
    ):
        assert any(shape in sql for sql in statements), shape


@pytest.fixture
def shop_server(fresh_mysql80: ServerFactory) -> DatabaseServer:
    server = fresh_mysql80()
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        for statement in [create_database_statement(), *old_statements(1000), *create_statements()]:
            cursor.execute(statement)
    return server


@pytest.mark.servers
def test_a_resumed_shop_continues_from_what_is_there(shop_server: DatabaseServer) -> None:
    with contextlib.closing(shop_server.connect()) as connection:
        traffic = DemoTraffic(Shop(), "one")
        for transaction in [*traffic.first(), *(traffic.next() for _ in range(1500))]:
            run_transaction(connection, transaction)
        run_transaction(connection, [(add_column_statement(), ())])
        shop = load_shop(connection)
        assert shop.has_added_column
        assert sorted(shop.customers) == sorted(traffic.shop.customers)
        assert sorted(shop.orders) == sorted(traffic.shop.orders)
        resumed = DemoTraffic(shop, "two")
        for transaction in islice(iter(resumed.next, None), 1500):
            run_transaction(connection, transaction)


@pytest.mark.servers
def test_the_pace_alters_and_truncates_once_and_writes_markers(shop_server: DatabaseServer) -> None:
    pace = TrafficThread(shop_server.connect, 300, alter_after_seconds=0.5, truncate_after_seconds=1.0)
    pace.start()
    end = time.monotonic() + 60
    while pace.transactions < 600 and time.monotonic() < end:
        pace.raise_failure()
        time.sleep(0.05)
    pace.stop()
    assert pace.transactions >= 600
    assert count(shop_server, f"SELECT COUNT(*) FROM {DATABASE}.markers") >= 2
    assert count(shop_server, f"SELECT COUNT(*) FROM {DATABASE}.customers WHERE loyalty_points IS NOT NULL") > 0
    truncated = "SELECT COUNT(*) FROM information_schema.columns WHERE column_name = 'loyalty_points'"
    assert count(shop_server, truncated) == 1


@pytest.mark.servers
def test_a_failing_server_ends_the_traffic_with_its_error(shop_server: DatabaseServer) -> None:
    def refuse() -> Any:
        raise ConnectionRefusedError("no server")

    pace = TrafficThread(refuse, 10, alter_after_seconds=99, truncate_after_seconds=99)
    pace.start()
    with pytest.raises(SetupError, match="no server"):
        pace.stop()


def count(server: DatabaseServer, sql: str) -> int:
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(sql)
        row = cursor.fetchone()
    assert row
    return int(row[0])
