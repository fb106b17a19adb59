"""Prepares the directory of a demo with its own conf/, data and lake, so that the demo never uses a user's configuration."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from sluice.cdc_engine.config import SluiceConfig, load_config
from sluice.console.toolchain.errors import SetupError

DESTINATION = "shop"
# The demo starts at this binlog file, the first one, because it contains the CREATE statements of the tables.
FIRST_BINLOG = "binlog.000001"
USUAL_PORTS = (3000, 4266, 15002, 33306)


@dataclasses.dataclass(frozen=True)
class DemoHome:
    """The directory of a demo. Each start of the demo writes conf/ again, and keeps the folders data, lake and source."""

    folder: Path

    @property
    def conf(self) -> Path:
        return self.folder / "conf"

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    @property
    def source_folder(self) -> Path:
        return self.folder / "source"

    def start_over(self) -> None:
        """Deletes the folders that an earlier demo created in this directory. Keeps all other files."""
        for name in ("conf", "lake", "data", "source"):
            shutil.rmtree(self.folder / name, ignore_errors=True)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Locks the directory, so that only one demo at a time runs in it. If the demo is killed, the kernel releases the lock."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "demo.lock").open("a+") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                handle.seek(0)
                owner = handle.read().strip() or "unknown"
                raise SetupError(
                    f"Another demo (pid {owner}) runs in {self.folder}; stop that demo with Ctrl-C in its "
                    "terminal, or give the new demo another folder with --dir and other ports with "
                    "--port-base."
                ) from None
            handle.truncate(0)
            handle.write(str(os.getpid()))
            handle.flush()
            yield

    def configure(self, ports: Mapping[str, int], destination: Mapping[str, Any]) -> SluiceConfig:
        """Writes conf/ with the given ports and the demo's destination, and returns the loaded configuration."""
        (self.conf / "destinations").mkdir(parents=True, exist_ok=True)
        remote = {"remote": f"sc://127.0.0.1:{ports['spark_connect']}"}
        main = {"data_dir": str(self.folder / "data"), "lake": str(self.lake), "ports": dict(ports), "spark": remote}
        self._write("sluice.yaml", main)
        start = {"file": FIRST_BINLOG, "offset": 4}
        self._write(f"destinations/{DESTINATION}.yaml", {**destination, "start": start})
        return load_config(self.conf)

    def _write(self, name: str, record: Mapping[str, Any]) -> None:
        (self.conf / name).write_text("# written by `sluice demo` at every start\n" + yaml.safe_dump(dict(record)))


def open_home(folder: Path | None) -> DemoHome:
    """Returns the directory of a demo: the given directory, or .sluice/demo in the working directory. Creates no directory."""
    return DemoHome((folder or Path(".sluice") / "demo").absolute())


def demo_ports(base: int) -> tuple[dict[str, int], int]:
    """Returns the ports of Sluice's processes, by their names in conf/, and the port of MySQL. The ports of the webserver, the code server,
    Spark and MySQL are `base` and the next three numbers, in this order. If `base` is 0, they are the default ports.
    """
    webserver, code_server, spark, mysql = range(base, base + 4) if base else USUAL_PORTS
    return {"webserver": webserver, "code_server": code_server, "spark_connect": spark}, mysql
