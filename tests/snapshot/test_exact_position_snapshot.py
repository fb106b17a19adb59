"""Tests that a table without a key is read at an exactly known position: its rows contain all earlier commits and no later one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.errors import SourceConnectionError
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.snapshot.chunks import Chunk
from sluice.cdc_engine.snapshot.reader import RowReader, open_reader
from sluice.cdc_engine.snapshot.table_reader import SourceTable
from sluice.cdc_engine.source.server import Source
from sluice.console.toolchain.database.server import DatabaseServer
from tests.fidelity.pipeline import SERVERS, binlog_end, run

pytestmark = pytest.mark.servers

DATABASE = "exact_place"


@pytest.fixture(params=SERVERS)
def any_server(request: pytest.FixtureRequest) -> DatabaseServer:
    """Returns a server. Each test runs with every server that the tests share."""
    server: DatabaseServer = request.getfixturevalue(request.param)
    return server


def _source(server: DatabaseServer) -> Source:
    return Source(destination=DATABASE, host="127.0.0.1", port=server.port, user="root")


def _table(server: DatabaseServer, name: str) -> TableVersion:
    from sluice.cdc_engine.table_meta.history.source.schema_snapshot import stable_snapshot  # noqa: PLC0415

    with server.connect() as connection:
        snapshot, _ = stable_snapshot(
            connection, lambda database, _: database == DATABASE, lambda: binlog_end(connection)
        )
    return next(each.version() for each in snapshot.tables if each.table == name)


@pytest.mark.parametrize("engine", ["InnoDB", "MyISAM"])
def test_rows_without_a_key_are_those_of_the_position_of_the_snapshot(
    any_server: DatabaseServer, tmp_path: Path, engine: str
) -> None:
    run(
        any_server,
        f"DROP DATABASE IF EXISTS {DATABASE}",
        f"CREATE DATABASE {DATABASE}",
        f"CREATE TABLE {DATABASE}.log (n INT, t INT) ENGINE={engine}",
    )
    stop, writing = threading.Event(), threading.Event()
    ends: list[tuple[int, tuple[str, int]]] = []

    def write() -> None:
        with any_server.connect(autocommit=True) as connection, connection.cursor() as cursor:
            number = 0
            while not stop.is_set():
                number += 1
                cursor.execute(f"INSERT INTO {DATABASE}.log VALUES ({number}, 0)")
                end = binlog_end(connection)
                ends.append((number, (end.file, end.offset)))
                if number == 20:
                    writing.set()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert writing.wait(30)
        connect: Callable[[], RowReader] = lambda: open_reader(_source(any_server))  # noqa: E731
        table = SourceTable(connect, _table(any_server, "log"), chunk_rows=10)
        table.read(Chunk(number=1), tmp_path / "rows.parquet")
        reached = table.end()
    finally:
        stop.set()
        thread.join()
    table.close()
    rows = sorted(int(n or 0) for n in pq.read_table(tmp_path / "rows.parquet")["n"].to_pylist())
    before = [number for number, end in ends if end <= (reached.file, reached.offset)]
    assert rows == list(range(1, len(rows) + 1))
    # `write` records the end of the binlog after a row's commit. This end may be later than the end of the commit itself. So the snapshot
    # may have one row more than `before`.
    assert len(before) <= len(rows) <= len(before) + 1


def test_a_server_shows_a_position_once_its_snapshot_reads_do(any_server: DatabaseServer) -> None:
    table = SourceTable(
        lambda: open_reader(_source(any_server)),
        TableVersion(database="mysql", table="user", columns=(), key=("User",)),
        chunk_rows=10,
    )
    with any_server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@version")
        ((version,),) = cursor.fetchall()
        gtids = ""
        if "mariadb" not in version.lower() and cursor.execute("SELECT @@GLOBAL.gtid_executed"):
            gtids = str(cursor.fetchone()[0]).replace("\n", "")
    position = Position(epoch=1, file="binlog.000001", offset=4, gtid_set=gtids)
    if gtids:
        assert table.shows(position)
        assert not table.shows(
            Position(epoch=1, file="b.1", offset=4, gtid_set=f"{'0' * 8}-0000-0000-0000-{'0' * 12}:1")
        )
    else:
        # MySQL without GTIDs does not report which commits are visible. There, `shows` returns False for the first UNTOLD_SECONDS.
        assert table.shows(position) == ("mariadb" in version.lower())
    table.close()


def test_failover_snapshot_rows_of_another_server_than_the_stream_is_of_are_refused(
    any_server: DatabaseServer,
) -> None:
    """Positions of one server mean nothing on another server. The connection can lead to another server after a failover, or if the host
    name gets another address.
    """
    table = SourceTable(
        lambda: open_reader(_source(any_server)),
        TableVersion(database="mysql", table="user", columns=(), key=("User",)),
        chunk_rows=10,
    )
    with closing(open_reader(_source(any_server))) as reader:
        named = reader.server()
    table.shows(Position(epoch=1, file="binlog.000001", offset=4, server_uuid=named))
    table.end()
    with pytest.raises(SourceConnectionError, match="rows and buffered changes may be of different servers"):
        table.shows(Position(epoch=1, file="binlog.000001", offset=4, server_uuid="another"))
    with pytest.raises(SourceConnectionError, match=f"leads to the server {named}"):
        table.end()
    if named.startswith("mariadb-"):  # A server that was built again has the server id of the previous one.
        with pytest.raises(SourceConnectionError, match="the server was reset or restored, or is another server"):
            table.shows(
                Position(epoch=1, file="binlog.000001", offset=4, server_uuid=named, gtid_set="0-1-999999999,77-1-1")
            )
    table.close()
