"""Runs a standalone Spark cluster from pyspark's jars for the tests: a master and its workers.

Runs use a Spark Connect server, which is a separate process (`server`) with the `settings` of this class. The workers execute its tasks.
"""

import json
import os
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sluice.console.toolchain.cache import open_cache
from sluice.console.toolchain.errors import ServerError
from sluice.console.toolchain.java import Java
from sluice.console.toolchain.ports import LOOPBACK, free_port
from sluice.console.toolchain.process import ChildProcess, last_lines
from sluice.console.toolchain.setup import set_up
from sluice.console.toolchain.spark.home import spark_home
from sluice.console.toolchain.spark.server import FOREIGN_VARIABLES

MASTER_CLASS = "org.apache.spark.deploy.master.Master"
WORKER_CLASS = "org.apache.spark.deploy.worker.Worker"
START_SECONDS_MAX = 120.0
POLL_SECONDS = 0.2
DAEMON_MEMORY, EXECUTOR_MEMORY = "192m", "1g"


class SparkCluster:
    """A master, and `workers` workers with one core each, on 127.0.0.1. `environment` has variables for the workers and their executors,
    for example credentials. `cores` names the core of the machine for each worker and its executor. If `cores` is empty, workers and
    executors may use any core.
    """

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        *,
        workers: int = 2,
        java: Java | None = None,
        cores: Sequence[int] = (),
    ) -> None:
        self.folder, self._given, self._count, self._java = folder.absolute(), dict(environment), workers, java
        self._cores = tuple(cores)
        self._port, self._page = free_port(), free_port()
        self._master: ChildProcess | None = None
        self._workers: list[ChildProcess] = []

    @property
    def url(self) -> str:
        """The value of an application's `spark.master`."""
        return f"spark://{LOOPBACK}:{self._port}"

    @property
    def settings(self) -> dict[str, str]:
        """The settings that the Spark Connect server needs. There is one executor per worker."""
        return {
            "spark.master": self.url,
            "spark.executor.cores": "1",
            "spark.executor.memory": EXECUTOR_MEMORY,
            "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -Xss4m",
        }

    def start(self) -> "SparkCluster":
        """Starts the cluster. Returns when all workers are registered at the master."""
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            ports = ("--port", str(self._port), "--webui-port", str(self._page))
            self._master = self._begin("master", MASTER_CLASS, *ports)
            self._wait("the master answers", lambda: self._master_state() is not None)
            for _ in range(self._count):
                self.add_worker()
            self._wait("all workers are there", lambda: self.alive == self._count)
        except BaseException:
            self.kill()
            raise
        return self

    def add_worker(self) -> None:
        """Starts one more worker. `alive` counts it when it is registered at the master."""
        number = len(self._workers)
        folder = self.folder / f"worker-{number}"
        size = ("--cores", "1", "--memory", EXECUTOR_MEMORY, "--work-dir", str(folder))
        core = self._cores[number] if number < len(self._cores) else None
        page = ("--webui-port", str(free_port()))
        self._workers.append(self._begin(folder.name, WORKER_CLASS, *size, *page, self.url, core=core))

    def kill_worker(self) -> None:
        """Ends the oldest running worker and its executor with SIGKILL, as the loss of a machine would."""
        next(worker for worker in self._workers if worker.running).kill()

    @property
    def worker_pids(self) -> list[int]:
        """The process ids of the workers. Their executors are children of these processes."""
        return [worker.pid for worker in self._workers]

    @property
    def alive(self) -> int:
        """The number of workers that are registered at the master."""
        return int((self._master_state() or {}).get("aliveworkers", 0))

    @property
    def logs(self) -> list[Path]:
        """The log files of the master, the workers and the executors."""
        return [
            path
            for path in self.folder.rglob("*")
            if path.is_file() and (path.suffix == ".log" or path.name in {"stderr", "stdout"})
        ]

    def kill(self) -> None:
        """Kills all processes."""
        for process in (*self._workers, self._master):
            if process is not None:
                process.kill()

    def _begin(self, name: str, of_class: str, *arguments: str, core: int | None = None) -> ChildProcess:
        program = str(spark_home(open_cache()) / "bin" / "spark-class")
        there = [] if core is None else ["taskset", "--cpu-list", str(core)]
        command = [*there, program, of_class, "--host", LOOPBACK, *arguments]
        return ChildProcess(command, self.folder / f"{name}.log", environment=self._environment(), folder=self.folder)

    def _environment(self) -> dict[str, str]:
        java = self._java or set_up([]).java
        own = {key: value for key, value in os.environ.items() if key not in FOREIGN_VARIABLES}
        ours = {
            "JAVA_HOME": str(java.home),
            "SPARK_HOME": str(spark_home(open_cache())),
            "SPARK_LOCAL_IP": LOOPBACK,
            "SPARK_DAEMON_MEMORY": DAEMON_MEMORY,
            "SPARK_LOCAL_DIRS": str(self.folder / "scratch"),
            "PYSPARK_PYTHON": sys.executable,
        }
        return {**own, **self._given, **ours}

    def _master_state(self) -> dict[str, Any] | None:
        try:
            with urllib.request.urlopen(f"http://{LOOPBACK}:{self._page}/json/", timeout=5) as answer:
                found: dict[str, Any] = json.load(answer)
        except (OSError, ValueError):
            return None
        return found

    def _wait(self, what: str, answers: Any) -> None:
        end = time.monotonic() + START_SECONDS_MAX
        while not answers():
            processes = [process for process in (self._master, *self._workers) if process is not None]
            if time.monotonic() > end or not all(process.running for process in processes):
                logs = "; ".join(f"{log.name}: {last_lines(log)}" for log in self.folder.glob("*.log"))
                raise ServerError(f"the Spark cluster did not start, {what} was not seen: {logs}")
            time.sleep(POLL_SECONDS)
