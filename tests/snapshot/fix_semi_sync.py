"""Provides a commit of MariaDB that waits for a semi-sync replica. Meanwhile the binlog has the commit, but reads do not show it yet."""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Callable, Iterator

import pymysql
from pymysql.constants import COMMAND

from sluice.cdc_engine.position import Position
from sluice.console.toolchain.database.server import DatabaseServer
from tests.fidelity.pipeline import binlog_end
from tests.waiting import wait_for

MARIADB = {"rpl_semi_sync_master_wait_point": "AFTER_SYNC", "rpl_semi_sync_master_timeout": 600000}


def _silent_replica(server: DatabaseServer) -> pymysql.Connection:
    """Connects a replica that takes part in semi-sync and acknowledges nothing."""
    connection = server.connect()
    with connection.cursor() as cursor:
        cursor.execute("SHOW MASTER STATUS")
        file, offset = cursor.fetchone()[:2]
        cursor.execute("SET @rpl_semi_sync_slave = 1, @master_binlog_checksum = 'NONE', @mariadb_slave_capability = 4")
    connection._execute_command(COMMAND.COM_BINLOG_DUMP, struct.pack("<IHI", offset, 0, 4242) + file.encode())  # type: ignore[attr-defined]
    return connection


@contextlib.contextmanager
def waiting_commit(server: DatabaseServer, statement: str) -> Iterator[tuple[Position, Callable[[], None]]]:
    """Commits a statement in a thread, where the commit waits for a replica. Yields the position after the commit, and a function that
    ends the wait.
    """
    with server.connect(autocommit=True) as admin, admin.cursor() as cursor:
        for name, value in MARIADB.items():
            cursor.execute(f"SET GLOBAL {name} = %s", (value,))
        cursor.execute("SET GLOBAL rpl_semi_sync_master_enabled = ON")

        def counted(what: str) -> bool:
            cursor.execute(f"SHOW GLOBAL STATUS LIKE 'Rpl_semi_sync_master_{what}'")
            return int(cursor.fetchone()[1]) == 1

        replica = _silent_replica(server)
        wait_for("the replica takes part in semi-sync", lambda: counted("clients"))

        def commit() -> None:
            with server.connect(autocommit=True) as writer, writer.cursor() as write:
                write.execute(statement)

        thread = threading.Thread(target=commit)

        def go_on() -> None:
            cursor.execute("SET GLOBAL rpl_semi_sync_master_enabled = OFF")
            thread.join(30)

        thread.start()
        try:
            wait_for("the commit waits for the replica", lambda: counted("wait_sessions"))
            end = binlog_end(admin)
            cursor.execute("SELECT @@GLOBAL.gtid_binlog_pos, @@server_id")
            executed, server_id = cursor.fetchone()
            yield (
                Position(
                    epoch=1,
                    file=end.file,
                    offset=end.offset,
                    gtid_set=executed,
                    server_uuid=f"mariadb-{server_id}",
                ),
                go_on,
            )
        finally:
            go_on()
            replica.close()
