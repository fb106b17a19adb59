"""Begins a new binlog file on a server, and waits until the server has written the events that begin the file."""

from __future__ import annotations

from sluice.console.toolchain.database.server import DatabaseServer
from tests.waiting import wait_for


def begin_file(server: DatabaseServer, *settings: str) -> None:
    """Begins a binlog file, in a session with `settings`. MariaDB writes a last BINLOG_CHECKPOINT event into the file some time later. This
    function waits for it, so that the end of the file moves only for the statements of the test.
    """
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in (*settings, "FLUSH BINARY LOGS"):
            cursor.execute(statement)
    if "mariadb" in server.version:
        wait_for("the file has its last checkpoint", lambda: _has_checkpoint(server))


def _has_checkpoint(server: DatabaseServer) -> bool:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW MASTER STATUS")
        file = cursor.fetchall()[0][0]
        cursor.execute(f"SHOW BINLOG EVENTS IN '{file}' LIMIT 20")
        return any((event[2], event[5]) == ("Binlog_checkpoint", file) for event in cursor.fetchall())
