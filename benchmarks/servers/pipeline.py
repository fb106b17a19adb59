"""Runs a complete private Sluice in a directory: a MySQL, conf/, and the processes that `sluice up` starts.

Benchmarks and acceptance tests use this module. All processes of the Sluice end with the process that created it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from sluice.cdc_engine.config import SluiceConfig, load_config
from sluice.cdc_engine.destination_files import read_ledger
from sluice.cdc_engine.position import file_number
from sluice.console.stack.stack import CODE_SERVER, Stack, StackOptions
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.ports import free_port

POLL_SECONDS = 0.1
OPTIONS = StackOptions(spark_memory="3g", die_with_parent=True, awaits_warm_up=True)


class Pipeline:
    """A complete Sluice with its own MySQL. `destination` is the name of its destination, and of the only database that this destination
    captures. `others` are more destinations of this form, on the same server. `settings` are further settings of all destinations, and
    `main` are further settings of sluice.yaml. `spark` is the address of a running Spark. If it is empty, a Spark is started.

    The caller starts the server and creates the tables before `start`, because the tables become assets when the code server starts.
    """

    def __init__(
        self,
        folder: Path,
        destination: str,
        say: Callable[[str], None],
        *,
        spark: str = "",
        settings: Mapping[str, Any] | None = None,
        main: Mapping[str, Any] | None = None,
        options: StackOptions = OPTIONS,
        others: Sequence[str] = (),
    ) -> None:
        self._settings, self._main, self._others = dict(settings or {}), dict(main or {}), tuple(others)
        self.folder, self.destination = folder, destination
        self._spark, self._options = spark, options
        # A hundred destinations need more connections than MySQL's default of 151.
        server_options: dict[str, str | int | None] = {
            "max_binlog_size": 1 << 30,
            "default_time_zone": "+00:00",
            "max_connections": 1000,
        }
        self.server = DatabaseServer("mysql-8.0.31", folder / "mysql", options=server_options)
        self._say = say

    def configure(self) -> None:
        """Writes conf/, without starting anything."""
        self.config = self._configure()
        self.stack = Stack(
            self.config,
            self.folder / "conf",
            self._say,
            self._options,
        )

    def start(self) -> None:
        self.configure()
        self.stack.up()

    def stop(self) -> None:
        self.stack.down()
        self.server.stop()

    def stop_engine(self) -> None:
        """Stops the process that contains the engine. Spark continues, so it stays warm."""
        self.stack.down_one(CODE_SERVER)

    def start_again(self) -> None:
        """Starts all processes of Sluice that do not run."""
        self.stack.up()

    def change(self, settings: Mapping[str, Any]) -> None:
        """Adds settings to the destination's file, and restarts the process that contains the engine."""
        self._settings |= settings
        self.stop_engine()
        self._write_destinations(self.folder / "conf")
        self.start_again()

    @property
    def directory(self) -> Path:
        """The destination's directory with the ledger, the staged batches and the locks."""
        return self.config.destination_dir(self.destination)

    def acked(self, destination: str = "") -> tuple[int, int]:
        """Returns the cursor of a destination, by default the first one."""
        cursor = read_ledger(self.config.destination_dir(destination or self.destination)).cursor
        return (file_number(cursor.file), cursor.offset) if cursor else (0, 0)

    def end(self) -> tuple[int, int]:
        """Returns the end of the server's binlog. All committed changes are before this position."""
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SHOW MASTER STATUS")
            row: Any = cursor.fetchone()
        return file_number(row[0]), int(row[1])

    def wait_until_acked(self, end: tuple[int, int], seconds_max: float) -> float:
        """Waits until the cursor has reached `end`, and returns the seconds. Raises TimeoutError after `seconds_max`."""
        begun = time.monotonic()
        while self.acked() < end:
            if time.monotonic() - begun > seconds_max:
                raise TimeoutError(f"acked {self.acked()} of {end} after {seconds_max} s: see {self.stack.logs}")
            time.sleep(POLL_SECONDS)
        return time.monotonic() - begun

    def table_path(self, table: str) -> Path:
        return Path(self.config.table_path(self.destination, self.destination, table))

    def _configure(self) -> SluiceConfig:
        conf = self.folder / "conf"
        (conf / "destinations").mkdir(parents=True)
        spark = free_port()
        main = {
            "data_dir": str(self.folder / "data"),
            "lake": str(self.folder / "lake"),
            "ports": {"webserver": free_port(), "code_server": free_port(), "spark_connect": spark},
            "spark": {"remote": self._spark or f"sc://127.0.0.1:{spark}"},
            **self._main,
        }
        (conf / "sluice.yaml").write_text(yaml.safe_dump(main))
        self._write_destinations(conf)
        return load_config(conf)

    def _write_destinations(self, conf: Path) -> None:
        for name in (self.destination, *self._others):
            settings = {
                "source": {"port": self.server.port, "user": "root"},
                "include": rf"{name}\..*",
                **self._settings,
            }
            (conf / f"destinations/{name}.yaml").write_text(yaml.safe_dump(settings))
