"""pytest plugin that shows a small shop in Dagster's own pages with Chromium. All browser tests share one shop and one browser.

MySQL, the code server with the engine, the webserver and the daemon are those of `sluice up`. Spark is shared with other tests.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright

from benchmarks.servers.chromium import provide_chromium
from benchmarks.servers.pipeline import Pipeline
from sluice.cdc_engine.destination_files import read_ledger
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.states import SnapshotState
from sluice.console.toolchain.spark.server import SparkConnectServer
from tests.waiting import wait_for

DATABASE = "shop"
PICTURES_OPTION = "--pictures"
RUN_SECONDS_MAX = 90.0
PAGE_SECONDS_MAX = 30.0
WINDOW = ViewportSize(width=1280, height=800)
CUSTOMERS = 400
FIRST_BINLOG = "binlog.000001"
MAGIC_BYTES, HEADER_BYTES = 4, 19
IN_USE = 1  # A flag of a file's first event. The checksum of the event is computed without this flag.
TABLES = {
    "customers": """
        id INT UNSIGNED NOT NULL PRIMARY KEY,
        email VARCHAR(120) NOT NULL,
        tier ENUM('basic', 'silver', 'gold') NOT NULL,
        balance DECIMAL(12,2) NOT NULL,
        updated_at DATETIME(6) NOT NULL""",
    "orders": """
        id BIGINT UNSIGNED NOT NULL PRIMARY KEY,
        customer_id INT UNSIGNED NOT NULL,
        status ENUM('new', 'paid', 'sent') NOT NULL COMMENT 'what became of it',
        total DECIMAL(14,2) NOT NULL,
        placed_at DATETIME(6) NOT NULL""",
}
COMMENTS = {"customers": "who buys", "orders": "what was bought"}
SETTINGS: dict[str, Any] = {
    "owners": ["team:shop"],
    "maintenance": {"optimize": ""},
    "tables": {
        f"{DATABASE}.customers": {"snapshot": "initial", "group": "people", "history": True},
        f"{DATABASE}.orders": {"owners": ["orders@example.com"], "group": "sales", "history": True},
    },
}


class ShopStack:
    """Starts the stack of the shop, and changes the tables of its source."""

    def __init__(self, folder: Path, spark: str) -> None:
        self.pipeline = Pipeline(folder, DATABASE, _silent, spark=spark, settings=SETTINGS)
        self._orders = self._sales = 0

    def start(self) -> None:
        self.pipeline.server.start()
        begin_hours_ago(self.pipeline.server.data_folder / FIRST_BINLOG)
        self._run(f"CREATE DATABASE {DATABASE} DEFAULT CHARACTER SET utf8mb4")
        self._run(
            *(f"CREATE TABLE {DATABASE}.{name} ({body}) COMMENT='{COMMENTS[name]}'" for name, body in TABLES.items())
        )
        many = ", ".join(f"({n}, 'c{n}@example.com', 'basic', {n}.50, NOW(6))" for n in range(1, CUSTOMERS + 1))
        self._run(f"INSERT INTO {DATABASE}.customers VALUES {many}")
        self.pipeline.start()

    @property
    def orders(self) -> int:
        """Returns the number of existing orders. One order was deleted per sale."""
        return self._orders - self._sales

    def sell(self, count: int) -> None:
        """Adds orders, pays some, deletes one, and changes customers. Returns when everything is in the lake."""
        first = self._orders + 1
        self._orders, self._sales = self._orders + count, self._sales + 1
        many = ", ".join(
            f"({n}, {n % CUSTOMERS + 1}, 'new', {n * 3}.99, NOW(6))" for n in range(first, self._orders + 1)
        )
        self._run(
            f"INSERT INTO {DATABASE}.orders VALUES {many}",
            f"UPDATE {DATABASE}.orders SET status = 'paid' WHERE id % 3 = 0 AND status = 'new'",
            f"DELETE FROM {DATABASE}.orders WHERE id = {first}",
            f"UPDATE {DATABASE}.customers SET tier = 'gold', updated_at = NOW(6) WHERE id = {first % CUSTOMERS}",
        )
        self.pipeline.wait_until_acked(self.pipeline.end(), RUN_SECONDS_MAX)

    def sell_and_lose(self, count: int) -> str:
        """Adds orders, and then deletes them from the lake. Returns the hour in which all of them were sold, as a partition key."""
        while True:
            begun = dt.datetime.now(dt.UTC)
            first = self._orders + 1
            self.sell(count)
            if dt.datetime.now(dt.UTC).hour == begun.hour:
                break
        self._lake_of_orders().delete(f"id >= {first}")
        return f"{begun:%Y-%m-%d-%H}:00"

    def orders_in_the_lake(self) -> int:
        """Returns the current number of rows in the lake's table."""
        rows: Any = pa.table(
            QueryBuilder().register("t", self._lake_of_orders()).execute("SELECT id FROM t").read_all()
        )
        return int(rows.num_rows)

    def _lake_of_orders(self) -> DeltaTable:
        return DeltaTable(self.pipeline.table_path("orders"))

    def change_comment(self, table: str, comment: str) -> None:
        quoted = comment.replace("'", "''")
        self._run(f"ALTER TABLE {DATABASE}.{table} COMMENT='{quoted}'")

    def rename_column(self, table: str, old: str, new: str) -> None:
        """Renames a column, and returns when this change waits for approval."""
        self._run(f"ALTER TABLE {DATABASE}.{table} RENAME COLUMN {old} TO {new}")
        wait_for("the change waits for approval", lambda: self.stopped_tables, RUN_SECONDS_MAX)

    @property
    def stopped_tables(self) -> tuple[str, ...]:
        """Returns the tables that are stopped now."""
        return tuple(each.table for each in read_ledger(self.pipeline.directory).stopped_tables)

    def wait_until_published(self, table: str, after: float = 0.0) -> None:
        """Waits until a snapshot of the table is published that was requested at `after` or later. `after` is in seconds since 1970."""
        records = SnapshotRecords(self.pipeline.directory)

        def published() -> bool:
            record = records.get(f"{DATABASE}.{table}")
            return record is not None and record.state == SnapshotState.PUBLISHED and record.wanted_at >= after

        wait_for(f"{table} is published", published, RUN_SECONDS_MAX)

    def _run(self, *statements: str) -> None:
        with self.pipeline.server.connect() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)


def begin_hours_ago(binlog: Path, hours: int = 3) -> None:
    """Sets the start time of a binlog file back. Without that, a new server would not have a complete hour, or even ten minutes, that
    tests can backfill.
    """
    with binlog.open("r+b") as file:
        file.seek(MAGIC_BYTES)
        began, kind, server_id, size, end, flags = struct.unpack("<IBIIIH", file.read(HEADER_BYTES))
        header = struct.pack("<IBIIIH", began - hours * 3600, kind, server_id, size, end, flags & ~IN_USE)
        body = file.read(size - HEADER_BYTES - 4)
        file.write(struct.pack("<I", zlib.crc32(header + body)))
        file.seek(MAGIC_BYTES)
        file.write(header[:-2] + struct.pack("<H", flags))


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, spark_server: SparkConnectServer) -> Iterator[ShopStack]:
    """Starts a shop with three batches of orders in the lake. Its customers existed before the stream."""
    made = ShopStack(tmp_path_factory.mktemp("shop"), spark_server.url)
    try:
        made.start()
        for count in (20, 60, 40):
            made.sell(count)
        made.wait_until_published("customers")
        yield made
    finally:
        made.pipeline.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Starts Debian's Chromium."""
    found = provide_chromium()
    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=found.program, env={**os.environ, **found.environment})
        with contextlib.closing(started):
            yield started


@pytest.fixture(scope="module")
def page(browser: Browser, shop: ShopStack) -> Iterator[Page]:
    """Opens one window for all tests. A relative address is one of the webserver."""
    expect.set_options(timeout=PAGE_SECONDS_MAX * 1000)
    context = browser.new_context(base_url=shop.pipeline.stack.url, viewport=WINDOW, timezone_id="UTC", locale="en-GB")
    context.set_default_timeout(PAGE_SECONDS_MAX * 1000)
    with contextlib.closing(context):
        yield context.new_page()


@pytest.fixture
def pictures(page: Page, request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Returns a function that saves a screenshot as NAME.png, if a command-line option requests screenshots."""
    folder: Path | None = request.config.getoption(PICTURES_OPTION, None)

    def keep(name: str) -> None:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            page.mouse.move(0, 0)
            page.screenshot(path=folder / f"{name}.png", animations="disabled")

    return keep


def _silent(_: str) -> None:
    pass
