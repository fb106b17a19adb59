"""A whole private Sluice for `bench e2e`: a MySQL, its configuration, the stack that `sluice up` starts, and their memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import yaml

from cdc_engine.client import read_ledger
from cdc_engine.config import SluiceConfig, load_config
from cdc_engine.position import file_number
from console.processes import ProcessFile
from console.stack import CODE_SERVER, Stack
from console.toolchain.ports import free_port
from console.toolchain.servers import DatabaseServer

DESTINATION = "bench"
SAMPLE_SECONDS = 1.0
MEBIBYTE = 1 << 20


class Pipeline:
    """Folder, server and stack; `start` and `stop` everything, `stop_engine` and `start_engine` only the engine's host."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.folder = folder
        options: dict[str, str | int | None] = {"max_binlog_size": 1 << 30, "default_time_zone": "+00:00"}
        self.server = DatabaseServer("mysql-8.0.31", folder / "mysql", options=options)
        self._say = say

    def start(self) -> None:
        """The server must run and have its tables: they become assets when the code server starts."""
        self.config = self._configure()
        self.stack = Stack(self.config, self.folder / "conf", self._say, spark_memory="3g", die_with_parent=True)
        self.stack.up()

    def stop(self) -> None:
        self.stack.down()
        self.server.stop()

    def stop_engine(self) -> None:
        """The engine's host goes, Spark stays warm."""
        self.stack.down_one(CODE_SERVER)

    def start_engine(self) -> None:
        self.stack.up()

    def acked(self) -> tuple[int, int]:
        cursor = read_ledger(self.config.destination_dir(DESTINATION)).cursor
        return (file_number(cursor.file), cursor.offset) if cursor else (0, 0)

    def end(self) -> tuple[int, int]:
        """The end of the server's binlog: nothing that was committed lies after it."""
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SHOW MASTER STATUS")
            row: Any = cursor.fetchone()
        return file_number(row[0]), int(row[1])

    def wait_until_acked(self, end: tuple[int, int], seconds_max: float) -> float:
        """Seconds until the cursor has reached `end`."""
        begun = time.monotonic()
        while self.acked() < end:
            if time.monotonic() - begun > seconds_max:
                raise TimeoutError(f"acked {self.acked()} of {end} after {seconds_max} s: see {self.stack.logs}")
            time.sleep(0.1)
        return time.monotonic() - begun

    def table_path(self, table: str) -> Path:
        return Path(self.config.table_path(DESTINATION, "bench", table))

    def _configure(self) -> SluiceConfig:
        conf = self.folder / "conf"
        (conf / "destinations").mkdir(parents=True)
        spark = free_port()
        main = {
            "data_dir": str(self.folder / "data"),
            "lake": str(self.folder / "lake"),
            "ports": {"webserver": free_port(), "code_server": free_port(), "spark_connect": spark},
            "spark": {"remote": f"sc://127.0.0.1:{spark}"},
        }
        (conf / "sluice.yaml").write_text(yaml.safe_dump(main))
        source = {"port": self.server.port, "user": "root"}
        (conf / f"destinations/{DESTINATION}.yaml").write_text(
            yaml.safe_dump({"source": source, "include": r"bench\..*"})
        )
        return load_config(conf)


class MemoryWatch:
    """The largest resident size of each process of a pipeline with its children, in MiB, sampled once a second."""

    def __init__(self, processes: ProcessFile) -> None:
        self._processes = processes
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.peak_mb: dict[str, int] = {}

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            for name, record in self._processes.running().items():
                try:
                    size = psutil.Process(record.pid).memory_info().rss // MEBIBYTE
                except psutil.Error:
                    continue
                self.peak_mb[name] = max(self.peak_mb.get(name, 0), int(size))
