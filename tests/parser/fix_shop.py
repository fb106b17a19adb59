"""Provides a database `shop` with one table, on a server of each kind, and functions that write to it."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from sluice.console.toolchain.database.server import DatabaseServer
from tests.waiting import wait_for


@pytest.fixture(params=["mysql80", "mysql9", "mariadb114"])
def server(request: pytest.FixtureRequest) -> DatabaseServer:
    """Returns each kind of server in turn, shared by the whole run."""
    found: DatabaseServer = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def shop(server: DatabaseServer) -> DatabaseServer:
    make_shop(server)
    return server


def make_shop(server: DatabaseServer) -> None:
    run(
        server,
        "DROP DATABASE IF EXISTS shop",
        "CREATE DATABASE shop",
        "CREATE TABLE shop.orders (id INT PRIMARY KEY, note LONGTEXT) ENGINE=InnoDB",
    )


def run(server: DatabaseServer, *statements: str) -> None:
    """Executes and commits each statement separately."""
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def insert(server: DatabaseServer, numbers: Iterable[int]) -> None:
    """Inserts each row in its own transaction."""
    with server.connect() as connection, connection.cursor() as cursor:
        for number in numbers:
            cursor.execute("INSERT INTO shop.orders VALUES (%s, %s)", (number, f"note {number}"))


def purge_all_but_newest(server: DatabaseServer) -> None:
    """Purges every binlog file but the newest. Repeats that until it succeeds, because the server keeps a file while a dump thread has it
    open.
    """

    def purged() -> bool:
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SHOW BINARY LOGS")
            files = [row[0] for row in cursor.fetchall()]
            cursor.execute(f"PURGE BINARY LOGS TO '{files[-1]}'")
            return len(files) == 1

    wait_for("one binlog file is left", purged, seconds_max=30.0)
