"""Tests that a snapshot and a repair read no rows before the storage engine has committed the changes that the binlog already has."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.instance.discovery import discover
from sluice.cdc_engine.instance.rows.source_rows import SourceRows
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.snapshot import table_reader
from sluice.cdc_engine.snapshot.reader import open_reader
from sluice.cdc_engine.snapshot.table_reader import SourceTable
from sluice.cdc_engine.snapshot.visible import waits_for_replicas
from sluice.cdc_engine.source.server import Source
from sluice.console.toolchain.database.server import DatabaseServer
from tests.fidelity.pipeline import binlog_end
from tests.fix_servers import ServerFactory
from tests.instance.fix_destination import Captured
from tests.snapshot.fix_semi_sync import waiting_commit
from tests.waiting import wait_for

TABLE = TableVersion(database="semi", table="orders", columns=(), key=("id",))


@pytest.mark.servers
@pytest.mark.found
def test_a_commit_that_waits_for_a_replica_is_not_shown_yet(fresh_server: ServerFactory) -> None:
    """Defect 4: a snapshot read a row in its old version while the row's commit waited for a replica (MariaDB, AFTER_SYNC)."""
    server = fresh_server("mariadb-11.4.5")
    connect = lambda: open_reader(Source(destination="semi", host="127.0.0.1", port=server.port, user="root"))  # noqa: E731
    with server.connect(autocommit=True) as admin, admin.cursor() as cursor:
        cursor.execute("CREATE DATABASE semi")
        cursor.execute("CREATE TABLE semi.orders (id INT PRIMARY KEY, n INT)")
        cursor.execute("INSERT INTO semi.orders VALUES (1, 1)")
        with (
            waiting_commit(server, "UPDATE semi.orders SET n = 2") as (position, go_on),
            closing(SourceTable(connect, TABLE, chunk_rows=10)) as table,
        ):
            assert not table.shows(position)
            with closing(connect()) as reader:  # type: ignore[no-untyped-call]
                assert waits_for_replicas(reader)
            cursor.execute("SELECT n FROM semi.orders")
            assert cursor.fetchone() == (1,)  # The dump has transaction 2 already.
            go_on()
            wait_for("the commit is shown", lambda: table.shows(position))
            cursor.execute("FLUSH BINARY LOGS")  # Only control events are between a commit and this position.
            end = binlog_end(admin)
            rotated = Position(epoch=1, file=end.file, offset=end.offset, gtid_set=position.gtid_set)
            wait_for("a position without a commit is shown", lambda: table.shows(rotated))
            cursor.execute("SELECT n FROM semi.orders")
            assert cursor.fetchone() == (2,)


@pytest.mark.servers
@pytest.mark.found
def test_a_repair_waits_for_a_commit_that_waits_for_a_replica(fresh_server: ServerFactory, tmp_path: Path) -> None:
    """Defect 4: a repair read the old version of a row while the row's commit waited for a replica. Then it overwrote the change, which was
    already merged.
    """
    captured = Captured(tmp_path, fresh_server("mariadb-11.4.5"))
    captured.run(f"INSERT INTO {captured.database}.numbers VALUES (1, 'old')")
    discover(captured.config, "shop")
    change = f"UPDATE {captured.database}.numbers SET filler = 'new'"
    with waiting_commit(captured.server, change) as (position, go_on):
        waits = list[float]()

        def pause(seconds: float) -> None:
            waits.append(seconds)
            go_on()

        rows = SourceRows(captured.config, "shop", pause).read(
            f"{captured.database}.numbers", ["n = 1"], position, tmp_path
        )
    assert waits, "the first read did not show the change"
    (file,) = rows.files
    assert pq.read_table(file)["filler"].to_pylist() == ["new"]


@pytest.mark.servers
@pytest.mark.found
def test_mysql_without_gtids_gets_a_lock_request_while_commits_wait(
    mysql57: DatabaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 4: on MySQL without GTIDs, a snapshot trusted the position after two seconds, although a commit may wait for a replica."""
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


@pytest.mark.parametrize(("reported", "waits"), [((), False), ((("x", "0"),), False), ((("x", "0"), ("y", "2")), True)])
def test_commits_that_wait_are_read_off_either_name_of_the_counter(
    reported: tuple[tuple[str, str], ...], waits: bool
) -> None:
    class SemiSyncVariables:
        def texts(self, _sql: str) -> list[tuple[str, str]]:
            return list(reported)

    assert waits_for_replicas(SemiSyncVariables()) is waits  # type: ignore[arg-type]
