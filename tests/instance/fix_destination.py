"""Provides a separate database on a shared server, a conf/ that captures it, and the staged batches of its engine."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq

from sluice.cdc_engine.config import SluiceConfig, load_config
from sluice.cdc_engine.contracts import OutstandingBatch
from sluice.cdc_engine.destination_files import read_ledger
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.console.toolchain.database.server import DatabaseServer
from tests.waiting import wait_for

NAMES = (f"engine_{number}" for number in itertools.count(1))


class Captured:
    """Captures the table `numbers` of a new database. Each number is written in a separate transaction, and is read back from staged
    files.
    """

    def __init__(self, root: Path, server: DatabaseServer) -> None:
        self.server, self.database = server, next(NAMES)
        self.conf, self.directory = root / "conf", root / "data" / "engine" / "shop"
        self.run(
            f"DROP DATABASE IF EXISTS {self.database}",
            f"CREATE DATABASE {self.database}",
            f"CREATE TABLE {self.database}.numbers (n INT PRIMARY KEY, filler LONGTEXT)",
        )
        (self.conf / "destinations").mkdir(parents=True)
        (self.conf / "sluice.yaml").write_text(f"data_dir: {root}/data\nlake: {root}/lake\n")
        self.describe()

    def describe(self, *lines: str, source: str = "") -> None:
        """Writes the destination's file in conf/, with additional `lines`. If `source` is empty, the user is root without a password."""
        source = source or f"{{user: root, port: {self.server.port}}}"
        text = "\n".join([f"source: {source}", *lines, f"include: {self.database}\\..*", ""])
        (self.conf / "destinations" / "shop.yaml").write_text(text)

    @property
    def config(self) -> SluiceConfig:
        return load_config(self.conf)

    def wait_until_running(self) -> None:
        """Waits until an engine in another process reads the source."""

        def running() -> bool:
            path = self.directory / "status.json"
            return path.exists() and json.loads(path.read_text())["state"] == "RUNNING"

        wait_for("the engine runs", running)

    def run(self, *statements: str) -> None:
        with self.server.connect() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def insert(self, numbers: Iterable[int], filler_bytes: int = 0) -> None:
        self.run(*(f"INSERT INTO {self.database}.numbers VALUES ({n}, REPEAT('x', {filler_bytes}))" for n in numbers))

    def staged(self, batch: OutstandingBatch) -> list[int]:
        """Returns the numbers in a staged batch, in order."""
        found = sorted((self.directory / batch.path).glob("*.parquet"))
        files = [file for file in found if "n" in pq.read_schema(file).names]  # A test may have other tables too.
        return [int(n) for file in files for n in pq.read_table(file, columns=["n"])["n"].drop_null().to_numpy()]

    def take(self, engine: Engine, count: int, seconds_max: float = 60.0) -> list[int]:
        """Takes the next `count` numbers, batch by batch, and acks each batch."""
        taken: list[int] = []

        def enough() -> bool:
            batch = engine.hand_out(0.5)
            if batch is not None:
                taken.extend(self.staged(batch))
                engine.ack(batch)
            return len(taken) >= count

        wait_for(f"{count} numbers are staged", enough, seconds_max)
        return taken

    def wait_until_read(self, engine: Engine) -> None:
        """Waits until the engine has read all that is in the source's binlog now."""
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SHOW MASTER STATUS")
            row = cursor.fetchone()
        assert row is not None
        end = (str(row[0]), int(row[1]))

        def read() -> bool:
            position = engine.status().position
            return position is not None and (position.file, position.offset) >= end

        wait_for("the engine has read everything", read)

    def saved_epoch(self) -> int:
        return read_ledger(self.directory).epoch


@contextmanager
def running(captured: Captured) -> Iterator[Engine]:
    """Runs a new engine of the destination while the block lasts."""
    engine = Engine(captured.config, "shop")
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()
