"""What `sluice up` and the demo start, and how it is stopped: Spark, the code server with the engine in it, webserver, daemon.

The code server is a plain `dagster api grpc` (orchestration.code_server): nobody but us restarts it, so the engine inside lives as long
as that process.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from cdc_engine.config import SluiceConfig
from cdc_engine.errors import SluiceError
from console.processes import (
    MARK,
    ProcessFile,
    ProcessRecord,
    StopStep,
    find,
    port_owner,
    stop,
    sweep,
    terminate,
    terminate_children,
)
from console.toolchain.cache import PROJECT_ROOT
from console.toolchain.errors import PortTakenError, ServerError
from console.toolchain.ports import LOOPBACK, is_free
from console.toolchain.process import ChildProcess, last_lines, why_no_run_can_start
from console.toolchain.spark_server import SparkConnectServer

CODE_SERVER, DAEMON, WEBSERVER, SPARK = "code server", "daemon", "webserver", "spark"
STOP_ORDER = (CODE_SERVER, DAEMON, WEBSERVER, SPARK)
START_SECONDS_MAX = 240.0  # a cold import of dagster and numba takes half a minute, on a busy machine far more
RUN_SECONDS_MAX = 30.0  # what a run that is merging gets to finish in when everything is stopped
POLL_SECONDS = 0.2
DYING_SECONDS_MAX = 3.0
LOCATION = "sluice"

Say = Callable[[str], None]


class Stack:
    """The processes of one configuration. `mark` ties them to this data_dir; `die_with_parent` is the demo's leash."""

    def __init__(
        self,
        config: SluiceConfig,
        conf: Path,
        say: Say,
        *,
        spark_memory: str = "4g",
        die_with_parent: bool = False,
        extra_environment: Mapping[str, str] | None = None,
        port_advice: str = "",
    ) -> None:
        self.config, self.conf, self.say = config, conf.resolve(), say
        self.file = ProcessFile(config.data_dir / "processes.json")
        self.logs = config.data_dir / "logs"
        self.dagster_home = config.data_dir / "dagster"
        self._die_with_parent = die_with_parent
        self._extra = dict(extra_environment or {})
        self._port_advice = port_advice or f"set another port under `ports` in {conf / 'sluice.yaml'}"
        self._children: dict[str, ChildProcess | SparkConnectServer] = {}
        self._spark = SparkConnectServer(
            None,
            config.data_dir / "spark",
            port=config.ports.spark_connect,
            memory=spark_memory,
            die_with_parent=die_with_parent,
        )

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.config.ports.webserver}"

    @property
    def mark(self) -> str:
        return str(self.file.path)

    @property
    def starts_spark(self) -> bool:
        """Whether the configured Spark is the local server that we start; a cluster's endpoint or a master is not ours."""
        remote = urlsplit(self.config.spark.remote)
        local = remote.hostname in {"127.0.0.1", "localhost"} and remote.port == self.config.ports.spark_connect
        return local and not self.config.spark.master

    def up(self) -> list[str]:
        """Starts what does not run yet and waits until all of it answers; returns the names that were started."""
        for record in self.file.running().values():
            if record.name in STOP_ORDER:
                self.say(f"{record.name} runs already (pid {record.pid})")
        return self._start_missing()

    def revive(self) -> list[str]:
        """Starts again what has died since `up`; returns the names. The demo's watch: `up` alone leaves that to its operator."""
        dead = [record.name for record in self.file.load() if record.name in STOP_ORDER and not find(record)]
        for name in dead:
            self.say(f"the {name} has died; starting it again")
        return self._start_missing() if dead else []

    def _start_missing(self) -> list[str]:
        running = self.file.running()
        wanted = [name for name in (CODE_SERVER, WEBSERVER, DAEMON, SPARK) if name not in running]
        wanted = [name for name in wanted if name != SPARK or self.starts_spark]
        self._require_ports(wanted)
        if problem := why_no_run_can_start():
            raise ServerError(problem[0].upper() + problem[1:])
        self._write_dagster_home()
        if CODE_SERVER in wanted:
            self._discover()
        with ThreadPoolExecutor(1) as pool:
            spark = pool.submit(self._start_spark) if SPARK in wanted else None
            for name in (CODE_SERVER, WEBSERVER):  # which looks for the code server when it starts
                self._start_one(name, wanted)
            if spark:
                spark.result()  # the daemon's first run would find no Spark
            warm = pool.submit(self._spark.warm) if spark else None
            self._start_one(DAEMON, wanted)
            if warm:
                self.say("warming up Spark (a first merge would take half a minute)")
                warm.result()
        return wanted

    def _discover(self) -> None:
        """Asks each source for its tables, which become the assets; a source that is down is no reason not to start."""
        from cdc_engine.instance.discovery import discover  # noqa: PLC0415

        for name, destination in self.config.destinations.items():
            password = self._extra.get(destination.source.password_env)
            try:
                discover(self.config, name, password)
            except SluiceError as error:
                self.say(f"{name}: its tables are those of the last time, for {error}")

    def down(self) -> list[int]:
        """Stops all that was started, in order, each with a deadline; returns the process ids that are left (none, normally)."""
        records = {record.name: record for record in self.file.load()}
        if CODE_SERVER in records:
            self._ask_code_server(records[CODE_SERVER])  # it lets a run finish, so ask before anything else is stopped
        left: list[int] = []
        for name in (DAEMON, WEBSERVER, CODE_SERVER, SPARK):
            if name in records:
                left += stop(records[name], self._steps(name), self.mark)
        left += sweep(self.mark)  # run workers of a code server that died and was started again
        for child in self._children.values():
            child.kill()  # already ended: this ends its leash
        self._children.clear()
        self.file.remove(STOP_ORDER)
        return left

    def down_one(self, name: str) -> list[int]:
        """Stops one of the processes with its deadlines; the others go on. `up` starts it again."""
        records = {record.name: record for record in self.file.load()}
        left = stop(records[name], self._steps(name), self.mark) if name in records else []
        if child := self._children.pop(name, None):
            child.kill()
        self.file.remove([name])
        return left

    def environment(self) -> dict[str, str]:
        """What every child gets: where conf/ and Dagster's home are, and the mark by which it is recognised."""
        path = os.pathsep.join([str(PROJECT_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        own = {
            "SLUICE_CONF": str(self.conf),
            "DAGSTER_HOME": str(self.dagster_home),
            "DAGSTER_GRPC_SHUTDOWN_GRACE_PERIOD": "5",
            "PYTHONPATH": path,
            MARK: self.mark,
        }
        return {**os.environ, **self._extra, **own}

    def _steps(self, name: str) -> list[StopStep]:
        if name != CODE_SERVER:
            return [StopStep(terminate, 15.0)]
        return [
            StopStep(self._ask_code_server, RUN_SECONDS_MAX),
            StopStep(terminate_children, 10.0),
            StopStep(terminate, 10.0),
        ]

    def _ask_code_server(self, record: ProcessRecord) -> None:
        from dagster._grpc.client import DagsterGrpcClient  # noqa: PLC0415  dagster takes seconds to import

        with contextlib.suppress(Exception):  # it may be hung or half-way gone: then the signals follow
            DagsterGrpcClient(host=LOOPBACK, port=record.port).shutdown_server(timeout=5)

    def _require_ports(self, wanted: list[str]) -> None:
        for name in wanted:
            port = self._port(name)
            if port and not _freed(port):
                owner = port_owner(port)
                raise PortTakenError(
                    f"Port {port}, wanted for the {name}, is taken by {owner or 'another program'};"
                    f" stop that program or {self._port_advice}."
                )

    def _port(self, name: str) -> int:
        ports = self.config.ports
        by_name = {CODE_SERVER: ports.code_server, WEBSERVER: ports.webserver, SPARK: ports.spark_connect}
        return by_name.get(name, 0)

    def _write_dagster_home(self) -> None:
        self.dagster_home.mkdir(parents=True, exist_ok=True)
        self.logs.mkdir(parents=True, exist_ok=True)
        own = self.conf / "dagster.yaml"
        source = own if own.exists() else PROJECT_ROOT / "conf" / "dagster.yaml"
        if source.exists():
            shutil.copyfile(source, self.dagster_home / "dagster.yaml")
        location = {"host": LOOPBACK, "port": self.config.ports.code_server, "location_name": LOCATION}
        (self.dagster_home / "workspace.yaml").write_text(yaml.safe_dump({"load_from": [{"grpc_server": location}]}))

    def _start_one(self, name: str, wanted: list[str]) -> None:
        """Starts one process, if it is wanted, and waits until it answers."""
        if name not in wanted:
            return
        self.say(f"starting the {name}")
        self._forget(name)
        log = self.logs / f"{name.replace(' ', '-')}.log"
        answers = self._answers(name)
        child = ChildProcess(
            self._command(name), log, environment=self.environment(), die_with_parent=self._die_with_parent
        )
        self._children[name] = child
        self.file.add(name, child.pid, self._port(name))
        end = time.monotonic() + START_SECONDS_MAX
        while not answers():
            self._require_alive(name, child, log, end)
            time.sleep(POLL_SECONDS)

    def _forget(self, name: str) -> None:
        """Ends the leash of a child that has died, before another takes its name."""
        child = self._children.pop(name, None)
        if child and not child.running:
            child.kill()

    def _require_alive(self, name: str, child: ChildProcess, log: Path, end: float) -> None:
        if not child.running:
            self.file.remove([name])
            raise ServerError(f"The {name} ended with exit code {child.exit_code}; {log} ends: {last_lines(log)}")
        if time.monotonic() > end:
            raise ServerError(
                f"The {name} did not answer within {START_SECONDS_MAX:.0f} s; {log} ends: {last_lines(log)}"
            )

    def _command(self, name: str) -> list[str]:
        workspace = str(self.dagster_home / "workspace.yaml")
        module = [sys.executable, "-m"]
        if name == CODE_SERVER:
            where = ["-m", "orchestration.definitions", "-h", LOOPBACK, "-p", str(self.config.ports.code_server)]
            return [*module, "orchestration.code_server", *where, "--location-name", LOCATION]
        if name == WEBSERVER:
            where = ["-h", LOOPBACK, "-p", str(self.config.ports.webserver), "-w", workspace]
            return [*module, "dagster_webserver", *where]
        return [*module, "dagster._daemon", "run", "-w", workspace]

    def _answers(self, name: str) -> Callable[[], bool]:
        """Asks a process that is about to be started whether it is there."""
        if name == DAEMON:
            return self._daemon_beats(time.time())
        return self._code_server_answers if name == CODE_SERVER else self._webserver_answers

    def _code_server_answers(self) -> bool:
        from dagster._grpc.client import DagsterGrpcClient  # noqa: PLC0415  dagster takes seconds to import

        try:
            DagsterGrpcClient(host=LOOPBACK, port=self.config.ports.code_server).ping("up")
        except Exception:  # grpc's errors have no common public base
            return False
        return True

    def _webserver_answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/server_info", timeout=5) as answer:  # noqa: S310  our own URL
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def _daemon_beats(self, since: float) -> Callable[[], bool]:
        from dagster import DagsterInstance  # noqa: PLC0415  dagster takes seconds to import

        instance = DagsterInstance.from_config(str(self.dagster_home))

        def beats() -> bool:
            beat = instance.get_daemon_heartbeats().get("SENSOR")
            return beat is not None and beat.timestamp >= since

        return beats

    def _start_spark(self) -> None:
        self._forget(SPARK)
        self._spark.start()
        self._children[SPARK] = self._spark
        self.file.add(SPARK, self._spark.pid, self._spark.port)


def _freed(port: int) -> bool:
    """Whether the port is free, or becomes so at once: a process that was killed holds its port until the kernel is done with it."""
    end = time.monotonic() + DYING_SECONDS_MAX
    while not is_free(port):
        if time.monotonic() > end:
            return False
        time.sleep(POLL_SECONDS)
    return True
