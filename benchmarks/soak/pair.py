"""Runs two MySQL servers with GTIDs, and traffic on the current master. The other server replicates from the master."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pymysql

from sluice.cdc_engine.gtid import parse_executed
from sluice.console.toolchain.database.server import DatabaseServer

VERSION = "mysql-8.0.31"
DATABASE = "soak"
KEYED, KEYLESS = "accounts", "journal"
KEYS = 500
SCHEMA = (
    f"CREATE DATABASE {DATABASE}",
    f"CREATE TABLE {DATABASE}.{KEYED} (id INT PRIMARY KEY, balance INT NOT NULL, note VARCHAR(40))",
    f"CREATE TABLE {DATABASE}.{KEYLESS} (entry BIGINT NOT NULL, account INT NOT NULL)",
)
PAUSE_SECONDS = 0.05  # The pause after each transaction.


class SoakError(Exception):
    """Raised if a condition was not met in time, or if the traffic has ended."""


def until(what: str, seconds_max: float, condition: Callable[[], bool]) -> float:
    """Waits until `condition` returns True, and returns the seconds. Raises SoakError after `seconds_max`."""
    begun = time.monotonic()
    while not condition():
        if time.monotonic() - begun > seconds_max:
            raise SoakError(f"{what}: not within {seconds_max:g} s")
        time.sleep(0.1)
    return time.monotonic() - begun


class Pair:
    """A pair of MySQL servers. The traffic writes to `master`, and `standby` replicates from it."""

    def __init__(self, folder: Path) -> None:
        options: dict[str, str | int | None] = {"log_slave_updates": "ON", "default_time_zone": "+00:00"}
        self.master, self.standby = (
            DatabaseServer(VERSION, folder / name, options={**options, "server_id": number})
            for number, name in enumerate(("first", "second"), start=1)
        )
        self.servers = (self.master, self.standby)

    def start(self) -> None:
        for server in self.servers:
            server.start()
            run(server, "RESET MASTER")
        self._follow()
        run(self.master, *SCHEMA)

    def stop(self) -> None:
        for server in self.servers:
            server.kill()

    def _follow(self) -> None:
        to = f"MASTER_HOST = '127.0.0.1', MASTER_PORT = {self.master.port}, MASTER_USER = 'root', MASTER_AUTO_POSITION = 1"
        run(self.standby, f"CHANGE MASTER TO {to}", "START SLAVE")

    def executed(self) -> str:
        """Returns the executed GTID set of the master."""
        return _executed(self.master)

    def switch(self) -> None:
        """Waits until the standby has all transactions, because asynchronous replication does not guarantee that. Then kills the master,
        and promotes the standby. The caller has paused the traffic.
        """
        wanted = self.executed()
        until("the standby has all", 120, lambda: contains(_executed(self.standby), wanted))
        self.master.kill()
        run(self.standby, "STOP SLAVE", "RESET SLAVE ALL")
        self.master, self.standby = self.standby, self.master

    def repair(self) -> None:
        """Restarts the killed server as the standby."""
        self.standby.start()
        self._follow()


class Traffic:
    """Runs transactions on the master until it is stopped. Each transaction inserts a row into the table without a key. `count` is the
    number of committed transactions.
    """

    def __init__(self, pair: Pair) -> None:
        self._pair, self._stopping, self._lock = pair, threading.Event(), threading.Lock()
        self.count = 0
        self._failed: Exception | None = None
        self._thread = threading.Thread(target=self._write, name="traffic")

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stops the traffic. Raises SoakError if an error had already ended the traffic."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._failed is not None:
            raise SoakError(f"the traffic ended: {self._failed}")

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Pauses the traffic until the block ends. The next transaction then uses the current master."""
        with self._lock:
            yield

    def _write(self) -> None:
        try:
            while not self._stopping.is_set():
                with self._lock, self._pair.master.connect(autocommit=False) as connection:
                    for _ in range(10):
                        self._transaction(connection)
                        time.sleep(PAUSE_SECONDS)
        # The soak kills the master only while the traffic is paused, so any error is a failure.
        except pymysql.Error as error:
            self._failed = error

    def _transaction(self, connection: Any) -> None:
        number = self.count
        account = number * 7919 % KEYS
        with connection.cursor() as cursor:
            cursor.execute(
                f"INSERT INTO {DATABASE}.{KEYED} VALUES (%s, 1, %s) ON DUPLICATE KEY UPDATE balance = balance + 1, note = VALUES(note)",
                (account, f"entry {number}"),
            )
            cursor.execute(f"INSERT INTO {DATABASE}.{KEYLESS} VALUES (%s, %s)", (number, account))
            if number % 10 == 0:
                cursor.execute(f"DELETE FROM {DATABASE}.{KEYED} WHERE id = %s", ((number * 31) % KEYS,))
        connection.commit()
        self.count += 1


def run(server: DatabaseServer, *statements: str) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def contains(executed: str, wanted: str) -> bool:
    have: Any = parse_executed(executed, mariadb=False)
    return bool(have.contains(parse_executed(wanted, mariadb=False)))


def _executed(server: DatabaseServer) -> str:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@GLOBAL.gtid_executed")
        row: Any = cursor.fetchone()
    return str(row[0]).replace("\n", "")
