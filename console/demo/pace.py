"""Runs the demo's traffic against MySQL at a steady rate, in a thread, and writes a marker row every two seconds.

Also executes an ALTER TABLE … ADD COLUMN and a TRUNCATE, once each, at configured times.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pymysql

from sluice.console.demo.schema import ADDED_COLUMN, DATABASE, MARKERS, TABLES, VISITS, add_column_statement
from sluice.console.demo.traffic import KEY_OF, DemoTraffic, Shop, Transaction
from sluice.console.toolchain.errors import SetupError

MARKER_SECONDS = 2.0
# `Connection[Any]` must only be used in annotations, because pymysql's class has a type argument only in its type stubs.
Connection = pymysql.Connection


def load_shop(connection: Connection[Any]) -> Shop:
    """Returns the keys of the rows that the shop has in MySQL, so that the traffic also changes rows that an earlier start of the demo has
    written.
    """
    shop = Shop()
    with connection.cursor() as cursor:
        for table in vars(shop):
            if table in TABLES:
                key = KEY_OF.get(table, "id")
                cursor.execute(f"SELECT {key} FROM {DATABASE}.{table} ORDER BY {key}")
                setattr(shop, table, [row[0] for row in cursor.fetchall()])
        cursor.execute(f"SELECT MAX(id) FROM {DATABASE}.{VISITS}")
        newest = cursor.fetchone()
        shop.visits = int(newest[0] or 0) if newest else 0
        cursor.execute(f"SHOW COLUMNS FROM {DATABASE}.customers LIKE '{ADDED_COLUMN}'")
        shop.has_added_column = cursor.fetchone() is not None
    return shop


class TrafficThread:
    """Runs the traffic in a thread, with `rate` transactions per second. Executes an ALTER TABLE when `alter_after_seconds` have passed
    since the start of the traffic, unless an earlier start of the demo has executed it. Executes a TRUNCATE after `truncate_after_seconds`.
    `failure` is the error that ended the traffic, or None. `transactions` is the number of committed transactions.
    """

    def __init__(
        self,
        connect: Callable[[], Connection[Any]],
        rate: float,
        *,
        alter_after_seconds: float,
        truncate_after_seconds: float,
        seed: str = "shop",
    ) -> None:
        self._connect, self._rate, self._seed = connect, rate, seed
        self._alter_after, self._truncate_after = alter_after_seconds, truncate_after_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="traffic", daemon=True)
        self.transactions = 0
        self.failure: Exception | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the traffic after the current transaction, and waits at most 60 s for the end. Raises SetupError if an error has ended the
        traffic.
        """
        self._stop.set()
        self._thread.join(60)
        self.raise_failure()

    def abandon(self) -> None:
        """Ends the traffic as `stop` does, but raises no error. May be called after `stop`."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(60)

    def raise_failure(self) -> None:
        if self.failure:
            raise SetupError(f"The traffic ended: {self.failure}; start the demo again to continue.") from self.failure

    def _run(self) -> None:
        try:
            connection = self._connect()
            try:
                self._loop(connection)
            finally:
                connection.close()
        except Exception as error:  # Stored, because `raise_failure` raises it in the main thread.
            self.failure = error

    def _loop(self, connection: Connection[Any]) -> None:
        shop = load_shop(connection)
        traffic = DemoTraffic(shop, f"{self._seed}/{len(shop.orders)}/{max(shop.orders, default=0)}")
        if not shop.customers:
            for transaction in traffic.first():
                self._commit(connection, transaction)
        began, marked, transactions = time.monotonic(), 0.0, 0
        while not self._stop.is_set():
            elapsed = time.monotonic() - began
            if elapsed >= marked:
                marked = elapsed + MARKER_SECONDS
                write_marker(connection)
            self._special(connection, shop, elapsed)
            if transactions <= elapsed * self._rate:
                self._commit(connection, traffic.next())
                transactions += 1
            else:
                self._stop.wait(transactions / self._rate - elapsed)
        write_marker(connection)

    def _special(self, connection: Connection[Any], shop: Shop, elapsed: float) -> None:
        if elapsed >= self._alter_after and not shop.has_added_column:
            self._commit(connection, [(add_column_statement(), ())])
            shop.has_added_column = True
        if elapsed >= self._truncate_after:
            self._truncate_after = float("inf")
            self._commit(connection, [(f"TRUNCATE TABLE {DATABASE}.flash_sales", ())])
            shop.flash_sales.clear()

    def _commit(self, connection: Connection[Any], transaction: Transaction) -> None:
        run_transaction(connection, transaction)
        self.transactions += 1


def run_transaction(connection: Connection[Any], transaction: Transaction) -> None:
    """Runs and commits one transaction."""
    connection.begin()
    with connection.cursor() as cursor:
        for sql, values in transaction:
            cursor.execute(sql, values or None)
    connection.commit()


def write_marker(connection: Connection[Any]) -> None:
    """Writes a marker row with the server's time. The demo compares this time with the time at which the row is visible in the lake."""
    sql = (
        f"INSERT INTO {DATABASE}.{MARKERS} SELECT COALESCE(MAX(id), 0) + 1, UTC_TIMESTAMP(6) FROM {DATABASE}.{MARKERS}"
    )
    run_transaction(connection, [(sql, ())])
