"""Provides two servers, of which one replicates from the other, a destination that names both, and a lake of two tables in memory."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Iterable
from pathlib import Path

import pyarrow.parquet as pq
import pymysql
import pytest

from sluice.cdc_engine.config import SluiceConfig, load_config
from sluice.cdc_engine.contracts import OutstandingBatch
from sluice.cdc_engine.destination_files import read_ledger
from sluice.cdc_engine.errors import SluiceError
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.cdc_engine.keeping.launcher import EngineSlot
from sluice.cdc_engine.source import reader
from sluice.console.toolchain.artifacts import MYSQL_9
from sluice.console.toolchain.database.server import DatabaseServer
from tests.fix_servers import ServerFactory
from tests.waiting import wait_for

DATABASE, TABLES = "pair", ("numbers", "notes")  # `notes` has no key
# statements of replication before MySQL 8.4 → their current names
RENAMED = {
    "RESET MASTER": "RESET BINARY LOGS AND GTIDS",
    "SHOW MASTER STATUS": "SHOW BINARY LOG STATUS",
    "CHANGE MASTER TO": "CHANGE REPLICATION SOURCE TO",
    "MASTER_": "SOURCE_",
    "SLAVE": "REPLICA",
}
TAGS = ("", ":blue", ":a_longer_tag")  # The tags of GTIDs.
HEARTBEAT = "heartbeat: {seconds: 0.2, retries: 2}"


class Lake:
    """Simulates a lake with the merged rows of each table. As in a Delta table, a change whose order key is already merged is not merged
    again.
    """

    def __init__(self) -> None:
        self.rows: dict[str, list[int]] = {name: [] for name in TABLES}
        self._committed = dict.fromkeys(TABLES, 0)

    def merge(self, folder: Path, tables: Iterable[str] = TABLES) -> None:
        manifest = json.loads((folder / "manifest.json").read_text())
        for table in manifest["tables"]:
            for segment in table["segments"] if table["table"] in tables else ():
                if segment["kind"] == "changes":
                    self._append(table["table"], folder / segment["file"])

    def _append(self, table: str, file: Path) -> None:
        staged = pq.read_table(file, columns=["n", "_sluice_order_key"]).to_pydict()
        new = [(n, key) for n, key in zip(*staged.values(), strict=True) if key > self._committed[table]]
        self.rows[table] += [n for n, _ in new]
        self._committed[table] = max([self._committed[table], *(key for _, key in new)])


class Pair:
    """Two servers. `first` is the primary at the beginning, and `second` its replica."""

    def __init__(self, version: str, fresh_server: ServerFactory, root: Path, *, gtids: bool = True) -> None:
        without = {} if gtids else {"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"}
        self.first, self.second = (
            fresh_server(version, {"server_id": each, "log_slave_updates": "ON", **without}) for each in (1, 2)
        )
        self.mariadb, self._gtids, self.tagged = "mariadb" in version, gtids, gtids and version == MYSQL_9
        for server in (self.first, self.second):
            run(server, "RESET MASTER")
        self.replicate(self.first, self.second)
        run(
            self.first,
            f"CREATE DATABASE {DATABASE}",
            f"CREATE TABLE {DATABASE}.numbers (n INT PRIMARY KEY)",
            f"CREATE TABLE {DATABASE}.notes (n INT)",
        )
        wait_for("the tables are there", lambda: (DATABASE,) in requested(self.second, "SHOW DATABASES"))
        self._root, self._counts = root, itertools.count()
        self.directory, self.lake = root / "data" / "engine" / "shop", Lake()
        (root / "conf" / "destinations").mkdir(parents=True)
        (root / "conf" / "sluice.yaml").write_text(f"data_dir: {root}/data\nlake: {root}/lake\n")
        self.describe()
        self.slot = self._slot()
        self.written: list[int] = []
        self._began = int(time.time()) + 1000

    def _slot(self) -> EngineSlot[Engine]:
        return EngineSlot("shop", lambda: Engine(self.config, "shop", watch_seconds=0.5))

    def end_engine(self) -> None:
        """Ends the engine. The next engine is created from the current file of the destination. It gets a new slot, because a stopped
        slot stays stopped.
        """
        self.slot.stop()
        self.slot = self._slot()

    def describe_endpoint(self, port: int, *lines: str) -> None:
        """Writes a destination with one source, whose address may later belong to another server."""
        text = "\n".join([f"source: {{user: root, port: {port}}}", f"include: {DATABASE}\\..*", *lines, ""])
        (self._root / "conf" / "destinations" / "shop.yaml").write_text(text)

    def describe(self, *lines: str) -> None:
        sources = [f"  - {{user: root, port: {server.port}}}" for server in (self.first, self.second)]
        text = "\n".join(["sources:", *sources, HEARTBEAT, f"include: {DATABASE}\\..*", *lines, ""])
        (self._root / "conf" / "destinations" / "shop.yaml").write_text(text)

    @property
    def config(self) -> SluiceConfig:
        return load_config(self._root / "conf")

    def replicate(self, master: DatabaseServer, replica: DatabaseServer) -> None:
        """Makes `replica` follow `master`, after the transactions that it already has. It follows by GTIDs or, if the servers have none,
        by position.
        """
        by_gtid = "MASTER_USE_GTID = slave_pos, MASTER_SSL = 0" if self.mariadb else "MASTER_AUTO_POSITION = 1"
        if not self._gtids:
            file, offset, *_ = requested(master, "SHOW MASTER STATUS")[0]
            by_gtid = f"MASTER_LOG_FILE = '{file}', MASTER_LOG_POS = {offset}"
        if self.mariadb:
            run(replica, "SET GLOBAL gtid_slave_pos = @@gtid_binlog_pos")
        run(
            replica,
            f"CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {master.port}, MASTER_USER = 'root', {by_gtid}",
            "START SLAVE",
        )

    def uuid(self, server: DatabaseServer) -> str:
        """Returns the identity of a server, as positions name it."""
        query = "SELECT @@server_id" if self.mariadb else "SELECT @@server_uuid"
        return f"{'mariadb-' if self.mariadb else ''}{requested(server, query)[0][0]}"

    def promote(self, replica: DatabaseServer) -> None:
        run(replica, "STOP SLAVE", "RESET SLAVE ALL")

    def write(self, server: DatabaseServer, count: int = 5) -> None:
        """Writes new numbers, each in one transaction for both tables. On MariaDB the transactions alternate between two domains, and on
        MySQL 9 between GTIDs with and without tags.
        """
        for number in itertools.islice(self._counts, count):
            domain: tuple[str, ...] = (f"SET SESSION gtid_domain_id = {number % 2 * 7}",) if self.mariadb else ()
            domain += (f"SET gtid_next = 'AUTOMATIC{TAGS[number % len(TAGS)]}'",) if self.tagged else ()
            domain += self._moment(number) if not self._gtids else ()
            inserts = [f"INSERT INTO {DATABASE}.{table} (n) VALUES ({number})" for table in TABLES]
            run(server, *domain, "BEGIN", *inserts, "COMMIT")
            self.written.append(number)

    def _moment(self, number: int) -> tuple[str, ...]:
        """Returns statements that set the binlog's time ten seconds later for each number. All these times are after the start of the
        file.
        """
        moment = self._began + 10 * number
        return (f"SET TIMESTAMP = {moment}", f"SET original_commit_timestamp = {moment * 1_000_000 + 1}")

    def wait_until_replicated(self, replica: DatabaseServer) -> None:
        """Waits until the replica has all rows. A new replica lacks the database and the table at first."""
        count = f"SELECT COUNT(*) FROM {DATABASE}.notes"

        def has_all() -> bool:
            with contextlib.suppress(pymysql.err.ProgrammingError, pymysql.err.OperationalError):
                return requested(replica, count) == [(len(self.written),)]
            return False

        wait_for("the replica has all", has_all)

    # ── the work of a tick and a run ──

    def engine(self) -> Engine | None:
        try:
            return self.slot.get(0.5)
        except SluiceError:
            return None

    def wait_until_read(self, server: DatabaseServer) -> None:
        """Waits until the engine has read the server's whole binlog, so that the next batch contains it."""
        file, offset, *_ = requested(server, "SHOW MASTER STATUS")[0]

        def there() -> bool:
            engine = self.engine()
            position = engine.status().position if engine else None
            return position is not None and (position.file, position.offset) >= (str(file), int(str(offset)))

        wait_for("the engine has read all", there)

    def next_batch(self) -> OutstandingBatch:
        found: list[OutstandingBatch] = []

        def one() -> bool:
            engine = self.engine()
            batch = engine.hand_out(0.2) if engine else None
            found.extend([batch] if batch else [])
            return bool(found)

        wait_for("a batch is out", one)
        return found[0]

    def settle(self, tables: Iterable[str] = TABLES) -> None:
        """Merges and acks batches until the lake has everything that was written."""

        def all_there() -> bool:
            engine = self.engine()
            batch = engine.hand_out(0.2) if engine else None
            if engine and batch:
                self.lake.merge(self.directory / batch.path)
                engine.ack(batch)
            return all(set(self.lake.rows[name]) >= set(self.written) for name in tables)

        wait_for("the lake has all", all_there)

    def troubles(self) -> tuple[str, ...]:
        engine = self.engine()
        return engine.status().troubles if engine else ("it is being started",)

    def check(self) -> None:
        """Checks that both tables have each change exactly once. One of them has no key."""
        for table in TABLES:
            assert sorted(self.lake.rows[table]) == self.written, table

    def epoch(self) -> int:
        return read_ledger(self.directory).epoch


def run(server: DatabaseServer, *statements: str) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(_current(server, statement))


def start_when_waited_for(server: DatabaseServer, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Starts replication on `server` when a reader first waits for it. Returns a list, to which each wait is added in seconds."""
    waits: list[float] = []

    def waited(seconds: float) -> None:
        if not waits:
            run(server, "START SLAVE SQL_THREAD")
        waits.append(seconds)
        real(seconds)

    real = reader.pause
    monkeypatch.setattr(reader, "pause", waited)
    return waits


def requested(server: DatabaseServer, query: str) -> list[tuple[object, ...]]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(_current(server, query))
        return list(cursor.fetchall())


def _current(server: DatabaseServer, statement: str) -> str:
    """Returns a statement as the server's version spells it."""
    if server.version == MYSQL_9 and statement.split(maxsplit=1)[0] in {"RESET", "SHOW", "CHANGE", "START", "STOP"}:
        for old, new in RENAMED.items():
            statement = statement.replace(old, new)
    return statement
