"""Tests that a table without a key is read at an exact position also by an account that may not lock it, on MySQL with GTIDs."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from pathlib import Path
from unittest import mock

import pyarrow.parquet as pq
import pytest

from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.gtid import has_executed
from sluice.cdc_engine.parser.connection import SourceConnection
from sluice.cdc_engine.parser.positions.logged import logged_after
from sluice.cdc_engine.parser.server_facts import read_facts
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.snapshot import exact_position
from sluice.cdc_engine.snapshot.chunks import Chunk
from sluice.cdc_engine.snapshot.reader import RowReader, open_reader
from sluice.cdc_engine.snapshot.record import SourceEnd
from sluice.cdc_engine.snapshot.table_reader import SourceTable
from sluice.console.toolchain.database.server import DatabaseServer
from tests.fidelity.pipeline import run
from tests.fix_servers import ServerFactory
from tests.snapshot.fix_reading import source_of, versions

pytestmark = [pytest.mark.servers, pytest.mark.managed]

DATABASE, USER = "unlocked", "may_not_lock"
ROWS = [1, 2, 3]


def prepare(server: DatabaseServer, *statements: str) -> None:
    run(
        server,
        f"DROP DATABASE IF EXISTS {DATABASE}",
        f"CREATE DATABASE {DATABASE}",
        f"DROP USER IF EXISTS {USER}",
        f"CREATE USER {USER}",
        f"GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {USER}",
        f"CREATE TABLE {DATABASE}.parent (id INT PRIMARY KEY)",
        f"CREATE TABLE {DATABASE}.log (n INT)",
        f"CREATE TABLE {DATABASE}.child (n INT, FOREIGN KEY (n) REFERENCES {DATABASE}.parent (id) ON DELETE CASCADE)",
        f"CREATE TABLE {DATABASE}.other (id INT PRIMARY KEY AUTO_INCREMENT)",
        *statements,
        *(f"INSERT INTO {DATABASE}.{table} VALUES ({n})" for table in ("parent", "log", "child") for n in ROWS),
    )


@pytest.fixture(params=["mysql57", "mysql80", "mysql9"])
def server(request: pytest.FixtureRequest) -> Iterator[DatabaseServer]:
    found: DatabaseServer = request.getfixturevalue(request.param)
    prepare(found)
    yield found
    run(found, f"DROP DATABASE {DATABASE}")


def begin_of(server: DatabaseServer) -> Position:
    with closing(SourceConnection(source_of(server))) as connection:
        facts = read_facts(connection)
    return Position(
        epoch=1, file=facts.file, offset=facts.offset, gtid_set=facts.executed, server_uuid=facts.server_uuid
    )


class Reading:
    """Reads a table with an account that may not lock it. `between` is called before each attempt, when the committed transactions are
    known. `later` is called when the end of the attempt is known.
    """

    def __init__(
        self,
        server: DatabaseServer,
        name: str,
        between: Callable[[int], object] = lambda _: None,
        later: Callable[[], object] = lambda: None,
    ) -> None:
        self._server, self._between, self._later = server, between, later
        self._table: TableVersion = versions(server, DATABASE)[name]
        self._tries, self._wait = 0, exact_position._wait_until_committed

    def logged(
        self, position: Position, tables: Collection[tuple[str, str]], until: tuple[str, int] | None, executed: str
    ) -> tuple[Position, bool]:
        if until is not None:
            self._later()
        return logged_after(source_of(self._server, USER), position, tables, until, executed)

    def _waited(self, reader: RowReader, end: Position) -> str:
        executed = self._wait(reader, end)
        self._tries += 1
        self._between(self._tries)
        return executed

    def rows(self, folder: Path, begin: Position) -> tuple[list[int], SourceEnd]:
        connect = functools.partial(open_reader, source_of(self._server, USER))
        with closing(SourceTable(connect, self._table, chunk_rows=10, logged=self.logged)) as table:
            while not table.shows(begin):
                pass
            path = folder / "rows.parquet"
            with mock.patch.object(exact_position, "_wait_until_committed", self._waited):
                table.read(Chunk(number=1), path)
            return sorted(int(n) for n in pq.read_table(path)["n"].to_numpy()), table.end()


@contextlib.contextmanager
def no_pause(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    pauses: list[float] = []
    monkeypatch.setattr(exact_position, "pause", pauses.append)
    yield pauses


def test_rows_are_those_of_the_position_while_others_write(server: DatabaseServer, tmp_path: Path) -> None:
    begin, stop, wrote = begin_of(server), threading.Event(), threading.Event()

    def write() -> None:
        number = 10
        with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
            while not stop.is_set():
                cursor.execute(f"INSERT INTO {DATABASE}.other VALUES ()")
                number += 1
                if number % 50 == 0:
                    cursor.execute(f"INSERT INTO {DATABASE}.log VALUES ({number})")
                    wrote.set()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert wrote.wait(60)
        rows, end = Reading(server, "log").rows(tmp_path, begin)
    finally:
        stop.set()
        thread.join()
    assert rows == sorted(ROWS + inserted(server, begin, end))


def inserted(server: DatabaseServer, begin: Position, end: SourceEnd) -> list[int]:
    """Returns the numbers that the binlog inserts into `log` between two positions of one file, as the server lists its events."""
    assert begin.file == end.file
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SHOW BINLOG EVENTS IN '{begin.file}' FROM {begin.offset}")
        events = cursor.fetchall()
        cursor.execute(f"SELECT n FROM {DATABASE}.log WHERE n > 3 ORDER BY n")
        numbers = [n for (n,) in cursor.fetchall()]
    maps = [row for row in events if row[2] == "Table_map" and f"({DATABASE}.log)" in row[5] and row[4] <= end.offset]
    return numbers[: len(maps)]


CHANGES = {
    "a row": ("log", f"INSERT INTO {DATABASE}.log VALUES (4)", [1, 2, 3, 4]),
    "a foreign key": ("child", f"DELETE FROM {DATABASE}.parent WHERE id = 2", [1, 3]),
    "a statement": ("log", f"TRUNCATE {DATABASE}.log", []),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_table_during_the_read_begins_it_again(
    server: DatabaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    name, statement, expected = CHANGES[change]
    reading = Reading(server, name, lambda tried: run(server, statement) if tried == 1 else None)
    with no_pause(monkeypatch) as pauses:
        rows, end = reading.rows(tmp_path, begin_of(server))
    assert (rows, len(pauses)) == (expected, 1)
    after = begin_of(server)
    assert (end.file, end.offset) == (after.file, after.offset)


def test_an_xa_transaction_that_commits_during_the_read_begins_it_again(
    server: DatabaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(
        server,
        "XA START 'x'",
        f"INSERT INTO {DATABASE}.log VALUES (4)",
        "XA END 'x'",
        "XA PREPARE 'x'",
    )
    reading = Reading(server, "log", lambda tried: run(server, "XA COMMIT 'x'") if tried == 1 else None)
    with no_pause(monkeypatch) as pauses:
        rows, _ = reading.rows(tmp_path, begin_of(server))
    assert (rows, len(pauses)) == ([1, 2, 3, 4], 1)


def test_changes_of_other_tables_do_not_delay_the_read(
    server: DatabaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = Reading(server, "log", lambda _: run(server, f"INSERT INTO {DATABASE}.other VALUES ()"))
    with no_pause(monkeypatch) as pauses:
        rows, _ = reading.rows(tmp_path, begin_of(server))
    assert (rows, pauses) == (ROWS, [])


def test_changes_after_the_read_began_do_not_count(
    server: DatabaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = begin_of(server)
    reading = Reading(server, "log", later=lambda: run(server, f"INSERT INTO {DATABASE}.log VALUES (4)"))
    with no_pause(monkeypatch) as pauses:
        rows, end = reading.rows(tmp_path, begin)
    assert (rows, pauses) == (ROWS, [])
    assert (end.file, end.offset) == (begin.file, begin.offset)


def test_a_table_that_is_always_written_is_refused_with_the_grant(
    server: DatabaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact_position, "UNLOCKED_TRIES", 3)
    reading = Reading(server, "log", lambda _: run(server, f"INSERT INTO {DATABASE}.log VALUES (4)"))
    refused = pytest.raises(
        ConfigurationError, match=r"changed during each of 3 attempts.*GRANT LOCK TABLES ON `unlocked`"
    )
    with no_pause(monkeypatch) as pauses, refused:
        reading.rows(tmp_path, begin_of(server))
    assert len(pauses) == 3


def test_a_commit_that_the_binlog_has_is_waited_for(
    server: DatabaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reported end of the binlog includes a transaction that is committed during the wait, as with semi-sync."""
    begin = begin_of(server)
    reading = Reading(server, "log")
    run(server, f"INSERT INTO {DATABASE}.log VALUES (4)")
    end = begin_of(server)
    executed = [begin.gtid_set.replace("\n", "")]
    waits: list[float] = []

    def has(there: str, wanted: str) -> bool:
        return has_executed(executed[0] if not waits else there, wanted)

    monkeypatch.setattr(exact_position, "has_executed", has)
    monkeypatch.setattr(exact_position, "pause", waits.append)
    rows, at = reading.rows(tmp_path, begin)
    assert (rows, len(waits)) == ([1, 2, 3, 4], 1)
    assert (at.file, at.offset) == (end.file, end.offset)
    waits.clear()
    monkeypatch.setattr(exact_position, "has_executed", lambda *_: False)
    monkeypatch.setattr(exact_position, "LOCK_SECONDS_MAX", 0)
    with pytest.raises(Exception, match="has not committed the transaction after 0 s"):
        reading.rows(tmp_path, begin)


def test_without_gtids_and_without_transactions_the_lock_is_needed(
    fresh_mysql80: ServerFactory, mysql80: DatabaseServer, tmp_path: Path
) -> None:
    bare = fresh_mysql80({"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"})
    prepare(bare)
    with pytest.raises(ConfigurationError, match=r"GRANT LOCK TABLES"):
        Reading(bare, "log").rows(tmp_path, begin_of(bare))
    prepare(mysql80, f"ALTER TABLE {DATABASE}.log ENGINE = MyISAM")
    with pytest.raises(ConfigurationError, match=r"GRANT LOCK TABLES"):
        Reading(mysql80, "log").rows(tmp_path, begin_of(mysql80))
    run(mysql80, f"DROP DATABASE {DATABASE}")
