"""A snapshot waits until the storage engine has committed what the binlog, and so the stream, has already."""

from __future__ import annotations

import struct
import threading
from contextlib import closing

import pymysql
import pytest
from pymysql.constants import COMMAND

from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.snapshot import table_reader
from sluice.cdc_engine.snapshot.reader import open_reader
from sluice.cdc_engine.snapshot.table_reader import SourceTable
from sluice.cdc_engine.snapshot.visible import waits_for_replicas
from sluice.cdc_engine.source.server import Source
from sluice.console.toolchain.database.server import DatabaseServer
from tests.fidelity.pipeline import binlog_end
from tests.fix_servers import ServerFactory
from tests.waiting import wait_for

TABLE = TableVersion(database="semi", table="orders", columns=(), key=("id",))
MARIADB = {"rpl_semi_sync_master_wait_point": "AFTER_SYNC", "rpl_semi_sync_master_timeout": 600000}


def _silent_replica(server: DatabaseServer) -> pymysql.Connection:
    """A replica that takes part in semi-sync and acknowledges nothing."""
    connection = server.connect()
    with connection.cursor() as cursor:
        cursor.execute("SHOW MASTER STATUS")
        file, offset = cursor.fetchone()[:2]
        cursor.execute("SET @rpl_semi_sync_slave = 1, @master_binlog_checksum = 'NONE', @mariadb_slave_capability = 4")
    connection._execute_command(COMMAND.COM_BINLOG_DUMP, struct.pack("<IHI", offset, 0, 4242) + file.encode())  # type: ignore[attr-defined]
    return connection


@pytest.mark.servers
@pytest.mark.found
def test_a_commit_that_waits_for_a_replica_is_not_shown_yet(fresh_server: ServerFactory) -> None:
    """Number 4: a snapshot reads a row in its old version while its commit waits for a replica (MariaDB, AFTER_SYNC)."""
    server = fresh_server("mariadb-11.4.5")
    connect = lambda: open_reader(Source(destination="semi", host="127.0.0.1", port=server.port, user="root"))  # noqa: E731
    with server.connect(autocommit=True) as admin, admin.cursor() as cursor:
        cursor.execute("CREATE DATABASE semi")
        cursor.execute("CREATE TABLE semi.orders (id INT PRIMARY KEY, n INT)")
        cursor.execute("INSERT INTO semi.orders VALUES (1, 1)")
        for name, value in MARIADB.items():
            cursor.execute(f"SET GLOBAL {name} = %s", (value,))
        cursor.execute("SET GLOBAL rpl_semi_sync_master_enabled = ON")

        def waiting() -> int:
            cursor.execute("SHOW GLOBAL STATUS LIKE 'Rpl_semi_sync_master_wait_sessions'")
            return int(cursor.fetchone()[1])

        def clients() -> bool:
            cursor.execute("SHOW GLOBAL STATUS LIKE 'Rpl_semi_sync_master_clients'")
            return int(cursor.fetchone()[1]) == 1

        replica = _silent_replica(server)
        wait_for("the replica takes part in semi-sync", clients)

        def update() -> None:
            with server.connect(autocommit=True) as writer, writer.cursor() as write:
                write.execute("UPDATE semi.orders SET n = 2")

        thread = threading.Thread(target=update)
        thread.start()
        try:
            wait_for("the commit waits for the replica", lambda: waiting() == 1)
            end = binlog_end(admin)
            cursor.execute("SELECT @@GLOBAL.gtid_binlog_pos")
            position = Position(epoch=1, file=end.file, offset=end.offset, gtid_set=cursor.fetchone()[0])
            with closing(SourceTable(connect, TABLE, chunk_rows=10)) as table:
                assert not table.shows(position)
                with closing(connect()) as reader:  # type: ignore[no-untyped-call]
                    assert waits_for_replicas(reader)
                cursor.execute("SELECT n FROM semi.orders")
                assert cursor.fetchone() == (1,)  # the dump has 2 already
                cursor.execute("SET GLOBAL rpl_semi_sync_master_enabled = OFF")
                thread.join(30)
                wait_for("the commit is shown", lambda: table.shows(position))
                cursor.execute("FLUSH BINARY LOGS")  # control events alone lie between a commit and this position
                end = binlog_end(admin)
                rotated = Position(epoch=1, file=end.file, offset=end.offset, gtid_set=position.gtid_set)
                wait_for("a position without a commit is shown", lambda: table.shows(rotated))
                cursor.execute("SELECT n FROM semi.orders")
                assert cursor.fetchone() == (2,)
        finally:
            cursor.execute("SET GLOBAL rpl_semi_sync_master_enabled = OFF")
            thread.join(30)
            replica.close()


@pytest.mark.servers
@pytest.mark.found
def test_mysql_without_gtids_is_asked_for_a_lock_while_commits_wait(
    mysql57: DatabaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Number 4: MySQL without GTIDs was believed after two seconds, though a commit waits for a replica."""
    monkeypatch.setattr(table_reader, "waits_for_replicas", lambda _: True)
    monkeypatch.setattr(table_reader, "UNTOLD_SECONDS", 0.0)
    connect = lambda: open_reader(Source(destination="semi", host="127.0.0.1", port=mysql57.port, user="root"))  # noqa: E731
    position = Position(epoch=1, file="binlog.000001", offset=4)
    with mysql57.connect(autocommit=True) as admin, admin.cursor() as cursor:
        cursor.execute("DROP DATABASE IF EXISTS semi")
        cursor.execute("CREATE DATABASE semi")
        cursor.execute("CREATE TABLE semi.orders (id INT PRIMARY KEY, n INT)")
        with (
            mysql57.connect(autocommit=False) as writer,
            writer.cursor() as write,
            closing(SourceTable(connect, TABLE, chunk_rows=10)) as table,
        ):
            write.execute("INSERT INTO semi.orders VALUES (1, 1)")
            assert not table.shows(position)
            writer.commit()
            assert table.shows(position)


@pytest.mark.parametrize(("told", "waits"), [((), False), ((("x", "0"),), False), ((("x", "0"), ("y", "2")), True)])
def test_commits_that_wait_are_read_off_either_name_of_the_counter(
    told: tuple[tuple[str, str], ...], waits: bool
) -> None:
    class Told:
        def texts(self, _sql: str) -> list[tuple[str, str]]:
            return list(told)

    assert waits_for_replicas(Told()) is waits  # type: ignore[arg-type]
