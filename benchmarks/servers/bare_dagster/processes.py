"""Runs a Dagster without Sluice: code server, daemon and webserver with Dagster's default settings, and 20 assets that nobody
materializes. `bench idle` compares Sluice with it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import yaml

from sluice.console.toolchain.ports import free_port
from sluice.console.toolchain.process import ChildProcess

BARE = "bare "  # The names of the processes begin with it.
LOOPBACK = "127.0.0.1"
DEFINITIONS = "benchmarks.servers.bare_dagster.definitions"
# Sluice's dagster.yaml disables telemetry too.
SETTINGS = {"telemetry": {"enabled": False}}


class BareDagster:
    """The three processes of a Dagster whose home is `folder`. These processes end with the process that started them."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._environment = {**os.environ, "DAGSTER_HOME": str(folder)}
        self._processes: dict[str, ChildProcess] = {}

    def start(self) -> None:
        """Starts the processes. Returns without waiting until they answer, because each of them waits for the others."""
        code_server, webserver = free_port(), free_port()
        (self._folder / "dagster.yaml").write_text(yaml.safe_dump(SETTINGS))
        workspace = self._folder / "workspace.yaml"
        location = {"host": LOOPBACK, "port": code_server, "location_name": "bare"}
        workspace.write_text(yaml.safe_dump({"load_from": [{"grpc_server": location}]}))
        where = ["-h", LOOPBACK, "-p", str(code_server)]
        self._run(f"{BARE}code server", "dagster", "api", "grpc", "-m", DEFINITIONS, *where)
        self._run(f"{BARE}daemon", "dagster._daemon", "run", "-w", str(workspace))
        self._run(f"{BARE}webserver", "dagster_webserver", "-h", LOOPBACK, "-p", str(webserver), "-w", str(workspace))

    def pids(self) -> dict[str, int]:
        """Returns the process ids by name. Raises RuntimeError if a process has ended, because its figures would be missing."""
        for name, process in self._processes.items():
            if not process.running:
                raise RuntimeError(f"the {name} has ended ({process.ended}): see {self._log(name)}")
        return {name: process.pid for name, process in self._processes.items()}

    def stop(self) -> None:
        for process in self._processes.values():
            process.stop()

    def _run(self, name: str, module: str, *arguments: str) -> None:
        command = [sys.executable, "-m", module, *arguments]
        self._processes[name] = ChildProcess(command, self._log(name), environment=self._environment)

    def _log(self, name: str) -> Path:
        return self._folder / f"{name.replace(' ', '-')}.log"
