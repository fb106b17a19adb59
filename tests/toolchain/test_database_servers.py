"""A private database server starts empty, keeps its data over restarts and crashes, and leaves no process behind."""

import pytest

from console.toolchain.artifacts import DATABASE_VERSIONS
from console.toolchain.database.server import DatabaseServer
from console.toolchain.process import wait_until_gone
from tests.fix_servers import ServerFactory


def _fetch(server: DatabaseServer, statement: str) -> object:
    connection = server.connect()
    try:
        with connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchone()
    finally:
        connection.close()


@pytest.mark.parametrize("version", DATABASE_VERSIONS)
def test_server_is_a_source_of_row_changes(fresh_server: ServerFactory, version: str) -> None:
    server = fresh_server(version)
    settings = _fetch(server, "SELECT @@log_bin, @@binlog_format, @@binlog_row_image, @@server_id, @@port")
    assert settings == (1, "ROW", "FULL", 1, server.port)
    assert str(_fetch(server, "SELECT version()")[0]).startswith(version.partition("-")[2])  # type: ignore[index]
    pid = server.pid
    server.stop()
    assert not server.running
    assert wait_until_gone(pid, 1)


def test_rows_survive_kill_and_restart(fresh_mysql80: ServerFactory) -> None:
    server = fresh_mysql80({"binlog_row_metadata": "FULL"})
    port, killed = server.port, server.pid
    _fetch(server, "CREATE DATABASE shop")
    _fetch(server, "CREATE TABLE shop.item (id INT PRIMARY KEY)")
    _fetch(server, "INSERT INTO shop.item VALUES (7)")
    server.kill()
    assert wait_until_gone(killed, 1)
    server.start()
    assert server.port == port
    assert _fetch(server, "SELECT id, @@binlog_row_metadata FROM shop.item") == (7, "FULL")
    server.restart({"binlog_row_metadata": "MINIMAL"})
    assert _fetch(server, "SELECT id, @@binlog_row_metadata FROM shop.item") == (7, "MINIMAL")
