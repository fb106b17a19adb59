"""Starts and stops the processes of `sluice up` and of the demo: Spark, the code server, the engine process, the webserver and the daemon.
The code server may contain the engines.

The code server runs `orchestration.code_server`, which behaves like `dagster api grpc`. Only this module restarts the code server, so an
engine in the code server runs as long as the code server's process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import yaml

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.errors import ConfigurationError
from sluice.console.stack.dagster_storage import lost_storage, with_storage
from sluice.console.stack.dagster_workers import calls_at_once, with_workers
from sluice.console.stack.parts import (
    Answers,
    PartPort,
    Process,
    ProcessPart,
    SparkProcess,
    WarmUp,
    code_server_check,
    daemon_check,
    webserver_check,
)
from sluice.console.stack.processes import (
    ENGINE,
    MARK,
    PARTS,
    ProcessFile,
    ProcessRecord,
    StopStep,
    engine_port,
    find,
    part_names,
    stop,
    sweep,
    terminate,
    terminate_children,
)
from sluice.console.stack.spark_server import Listening, pass_store_settings, several_sparks, spark_server
from sluice.console.stack.supervisor import UP, Patience, StackPart, Supervisor
from sluice.console.stack.table_reading import TableReading
from sluice.console.toolchain.errors import ServerError
from sluice.console.toolchain.ports import LOOPBACK, listens
from sluice.console.toolchain.process import ChildProcess, why_no_run_can_start
from sluice.console.toolchain.spark.server import WARM_SECONDS_MAX
from sluice.package_files import conf_file

CODE_SERVER, DAEMON, WEBSERVER, SPARK = PARTS
SUPERVISOR = "supervisor"  # The name of the process of `sluice up --foreground`.
STOP_ORDER = (CODE_SERVER, DAEMON, WEBSERVER, ENGINE, SPARK)
# If a part does not answer within this many seconds after its start, it has failed. The first import of dagster and numba takes half a
# minute, and much more on a busy machine.
START_SECONDS_MAX = 240.0
DOWN_SECONDS_MAX = 120.0  # A supervisor has this many seconds to end all its processes. After that, it is killed.
# While the code server is being stopped, a run that is merging has this many seconds to finish. After that, its process gets SIGTERM.
RUN_SECONDS_MAX = 30.0
# The warm-up of Spark waits at most this many seconds until the processors are idle. After that, it merges even if they are busy.
IDLE_SECONDS_MAX = 20.0
LOCATION = "sluice"

Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StackOptions:
    """Options that are not in conf/.

    - `spark_memory`: the memory of Spark's Java process.
    - `die_with_parent`: the processes end with the process that started them.
    - `environment`: additional variables for the processes.
    - `port_advice`: what to do if another program has a port. If it is empty, the advice is to set another port in conf/.
    - `dagster`: whether Dagster's processes are started too. The engines and Spark do not depend on this option.
    - `webserver`: whether Dagster's webserver is started. No other process needs it.
    - `warms_spark`: whether Spark makes a first merge before a run needs Spark.
    - `awaits_warm_up`: whether `up` waits until the first merge has ended.
    """

    spark_memory: str = "4g"
    die_with_parent: bool = False
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    port_advice: str = ""
    dagster: bool = True
    webserver: bool = True
    warms_spark: bool = True
    awaits_warm_up: bool = False


DEFAULT_OPTIONS = StackOptions()


class Stack:
    """Starts and stops the processes of one configuration. The environment of these processes contains `mark`, by which they are found."""

    def __init__(
        self,
        config: SluiceConfig,
        conf: Path,
        say: Say,
        options: StackOptions = DEFAULT_OPTIONS,
    ) -> None:
        self.config, self.conf, self.say = config, conf.resolve(), say
        self._options = options
        self.file = ProcessFile(config.data_dir / "processes.json")
        self.logs = config.data_dir / "logs"
        self.dagster_home = config.data_dir / "dagster"
        self._port_advice = options.port_advice or f"set another port under `ports` in {conf / 'sluice.yaml'}"
        self._children: dict[str, Process] = {}
        listening = Listening(config.ports.spark_connect, memory=options.spark_memory)
        self._spark = spark_server(config, self.conf, listening, die_with_parent=options.die_with_parent)

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.config.ports.webserver}"

    @property
    def shown_at(self) -> str:
        """A clause with the address of Dagster's UI, or with the reason why Dagster is not started."""
        return (
            f"Dagster's UI: {self.url}"
            if self._options.dagster
            else "Dagster is not started, because your own Dagster calls the engines"
        )

    @property
    def mark(self) -> str:
        return str(self.file.path)

    @property
    def starts_spark(self) -> bool:
        return SPARK in part_names(self.config)

    def up(self) -> list[str]:
        """Starts the parts that do not run, and waits until all parts answer. Returns the names of the parts that it started. After an
        error or an interrupt, ends the parts that it started. If `sluice up --foreground` runs, starts nothing, because that process
        restarts its parts.
        """
        running = self.file.running()
        if SUPERVISOR in running:
            self.say(
                f"`sluice up --foreground` (pid {running[SUPERVISOR].pid}) runs already and restarts processes that die"
            )
            return []
        self._end_without_storage(running)
        for record in self.file.running().values():
            if record.name in STOP_ORDER:
                self.say(f"{record.name} runs already (pid {record.pid})")
        return self._start_missing()

    def _end_without_storage(self, running: Mapping[str, ProcessRecord]) -> None:
        """Ends Dagster's processes if their storage was removed, so that they start again with a new one."""
        dagster = [running[name] for name in (DAEMON, WEBSERVER, CODE_SERVER) if name in running]
        why = lost_storage(self.dagster_home, max((record.age_seconds() for record in dagster), default=0.0))
        if why:
            self.say(why)
            for record in dagster:
                self.down_one(record.name)

    def revive(self) -> list[str]:
        """Restarts the parts that have died since `up`, and returns their names. The demo and `catch-up` call this method regularly. After
        `sluice up` without --foreground, no process calls it, so a part that dies stays dead until the next `sluice up`.
        """
        dead = [record.name for record in self.file.load() if record.name in STOP_ORDER and not find(record)]
        for name in dead:
            self.say(f"the {name} has died; starting it again")
        return self._start_missing() if dead else []

    def supervisor(self, patience: Patience) -> Supervisor:
        """Checks whether Sluice can start, writes Dagster's home, and provides Spark's jars if Spark must be started. Then returns the
        supervisor that starts all parts and keeps them running. `patience` limits its restarts. Raises ConfigurationError if there is
        neither Dagster nor an engine to start.
        """
        if not (self._options.dagster or engine_port(self.config)):
            raise ConfigurationError(
                f"without Dagster, there is no engine to start on this host: set engine: {{kind: remote}} in {self.conf / 'sluice.yaml'}; "
                "if engine.address names another host, start `sluice engine` on that host"
            )
        parts, running = self._parts(), self._running()
        self.file.remove([SUPERVISOR])
        self.require_startable()
        self._write_dagster_home()
        if self.starts_spark and SPARK not in running:
            pass_store_settings(self._spark, self.config, "sluice up")
            self._spark.provide()
        return Supervisor(parts, self.say, patience, running)

    def require_startable(self) -> None:
        """Raises an error if Sluice cannot start and waiting does not help. The error is PortTakenError if another program has a port. It
        is ServerError if the system has no semaphores, or if several hosts that write one lake would not share one Spark. Must be called
        before any part starts.
        """
        running = self._running()
        for part in self._parts():
            if isinstance(part, ProcessPart) and part.name not in running:
                part.require_port()
        if problem := why_no_run_can_start() or several_sparks(self.config, self.conf):
            raise ServerError(problem[0].upper() + problem[1:])

    def _running(self) -> list[str]:
        return [name for name in self.file.running() if name in STOP_ORDER]

    def _start_missing(self) -> list[str]:
        supervisor = self.supervisor(UP)
        try:
            supervisor.until_ready(tasks=self._options.awaits_warm_up)
        except BaseException as error:
            if supervisor.begun:
                self.say(
                    f"{'interrupted' if isinstance(error, KeyboardInterrupt) else 'failed'}; ending the "
                    "processes that were started"
                )
            for name in STOP_ORDER:
                if name in supervisor.begun:
                    self.down_one(name)
            supervisor.end_work()
            raise
        return [name for name in dict.fromkeys(supervisor.begun) if name in STOP_ORDER]

    def _parts(self) -> list[StackPart]:
        ports = self.config.ports
        parts: list[StackPart] = []
        if CODE_SERVER not in self._running():
            log = self.logs / "source-tables.log"
            parts.append(TableReading(self.config, self._options.environment, log, self.say))
        tables = tuple(part.name for part in parts)
        if port := engine_port(self.config):
            parts.append(self._part(ENGINE, tables, lambda _: lambda: listens(port), port))
        if self._options.dagster:
            parts.append(self._part(CODE_SERVER, tables, code_server_check(ports.code_server), ports.code_server))
        if self.starts_spark:
            parts.append(self._part(SPARK, (), lambda _: self._spark.answers, ports.spark_connect))
        if self.starts_spark and self._options.warms_spark:
            # The warm-up waits until the processors are idle, so that it does not slow down the start of the other parts and the first run.
            # The warm-up begins at once if `up` waits for its end anyway.
            wait_seconds = 0.0 if self._options.awaits_warm_up else IDLE_SECONDS_MAX
            command = self._spark.warm_up_command(self._spark.folder / "warmup", wait_seconds)
            log, die_with_parent = self._spark.folder / "warmup.log", self._options.die_with_parent
            parts.append(WarmUp(command, (SPARK,), log, WARM_SECONDS_MAX, self.say, die_with_parent=die_with_parent))
        if not self._options.dagster:
            return parts
        # The daemon needs the code server, and needs Spark for its first run. No run waits for the webserver, so the webserver starts after
        # the daemon.
        after = tuple(part.name for part in parts if part.name in {CODE_SERVER, SPARK})
        parts.append(self._part(DAEMON, after, daemon_check(self.dagster_home), 0))
        if self._options.webserver:
            parts.append(self._part(WEBSERVER, (CODE_SERVER, DAEMON), webserver_check(self.url), ports.webserver))
        return parts

    def _part(
        self, name: str, after: tuple[str, ...], question: Callable[[ProcessRecord], Answers], port: int
    ) -> ProcessPart:
        log = self._spark.log if name == SPARK else self.logs / f"{name.replace(' ', '-')}.log"
        return ProcessPart(
            name,
            after,
            self.file,
            log=log,
            start=functools.partial(self._start, name, log),
            question=question,
            port=PartPort(port, self._port_advice),
            seconds_max=START_SECONDS_MAX,
        )

    def _start(self, name: str, log: Path) -> Process:
        if name == SPARK:
            process: Process = SparkProcess(self._spark)
        else:
            process = ChildProcess(
                self._command(name), log, environment=self.environment(), die_with_parent=self._options.die_with_parent
            )
        self._children[name] = process
        return process

    def down(self) -> list[int]:
        """Stops all started processes in order, each with a deadline. Returns the ids of processes that still run, normally none."""
        records = {record.name: record for record in self.file.load()}
        # The supervisor is stopped first, because it would restart the processes that are stopped next.
        if SUPERVISOR in records and records[SUPERVISOR].pid != os.getpid():
            stop(records[SUPERVISOR], [StopStep(terminate, DOWN_SECONDS_MAX)])
        if CODE_SERVER in records:
            # The code server ends only after its runs have ended. Therefore it gets the request to end before the daemon and the webserver
            # are stopped. Its runs end while the daemon and the webserver are stopped.
            self._end_code_server(records[CODE_SERVER])
        left: list[int] = []
        for name in (DAEMON, WEBSERVER, CODE_SERVER, ENGINE, SPARK):
            if name in records:
                left += stop(records[name], self._steps(name), self.mark)
        # A code server that died may have left run workers, which have no record. The sweep ends them too.
        left += sweep(self.mark)
        for child in self._children.values():
            child.kill()  # The child has ended. This call ends the process that guards the child.
        self._children.clear()
        self.file.remove([*STOP_ORDER, SUPERVISOR])
        return left

    def kill(self) -> list[int]:
        """Ends all started processes at once, by SIGKILL. Returns the ids of processes that still run, normally none."""
        left = sweep(self.mark)
        for child in self._children.values():
            child.kill()
        self._children.clear()
        self.file.remove([*STOP_ORDER, SUPERVISOR])
        return left

    def down_one(self, name: str) -> list[int]:
        """Stops the process of one part, and kills it if it does not end within its deadlines. The other parts continue. The next `up`
        starts the stopped part again. Returns the ids of processes that still run.
        """
        records = {record.name: record for record in self.file.load()}
        left = stop(records[name], self._steps(name), self.mark) if name in records else []
        if child := self._children.pop(name, None):
            child.kill()
        self.file.remove([name])
        return left

    def environment(self) -> dict[str, str]:
        """Returns the environment of every started process. The environment contains the paths of conf/ and of Dagster's home, and `mark`,
        by which the processes are found.
        """
        own = {
            "SLUICE_CONF": str(self.conf),
            "DAGSTER_HOME": str(self.dagster_home),
            "DAGSTER_GRPC_SHUTDOWN_GRACE_PERIOD": "5",
            # With this variable, Dagster stores the planned tables of a run in one transaction. Without the variable, Dagster needs two
            # transactions for each table.
            "DAGSTER_EVENT_BATCH_SIZE": "1000",
            MARK: self.mark,
        }
        return {**os.environ, **self._options.environment, **own}

    def _steps(self, name: str) -> list[StopStep]:
        if name != CODE_SERVER:
            return [StopStep(terminate, 15.0)]
        return [
            StopStep(self._end_code_server, RUN_SECONDS_MAX),
            StopStep(terminate_children, 10.0),
            StopStep(terminate, 10.0),
        ]

    def _end_code_server(self, record: ProcessRecord) -> None:
        from dagster._grpc.client import DagsterGrpcClient  # noqa: PLC0415  dagster takes seconds to import

        # Errors are ignored, because the next steps send signals: the code server may hang, or may be ending already.
        with contextlib.suppress(Exception):
            DagsterGrpcClient(host=LOOPBACK, port=record.port).shutdown_server(timeout=5)

    def _write_dagster_home(self) -> None:
        self.dagster_home.mkdir(parents=True, exist_ok=True)
        self.logs.mkdir(parents=True, exist_ok=True)
        settings = with_workers(conf_file(self.conf, "dagster.yaml").read_text(), len(self.config.destinations))
        (self.dagster_home / "dagster.yaml").write_text(with_storage(settings, self.dagster_home))
        location = {"host": LOOPBACK, "port": self.config.ports.code_server, "location_name": LOCATION}
        (self.dagster_home / "workspace.yaml").write_text(yaml.safe_dump({"load_from": [{"grpc_server": location}]}))

    def _command(self, name: str) -> list[str]:
        workspace = str(self.dagster_home / "workspace.yaml")
        module = [sys.executable, "-m"]
        if name == CODE_SERVER:
            where = ["-m", "sluice.orchestration.definitions", "-h", LOOPBACK, "-p", str(self.config.ports.code_server)]
            calls = ["--max-workers", str(calls_at_once((self.dagster_home / "dagster.yaml").read_text()))]
            return [*module, "sluice.orchestration.code_server", *where, "--location-name", LOCATION, *calls]
        if name == ENGINE:
            return [*module, "sluice.orchestration.rpc.process"]
        if name == WEBSERVER:
            where = ["-h", LOOPBACK, "-p", str(self.config.ports.webserver), "-w", workspace]
            return [*module, "sluice.orchestration.webserver", *where]
        return [*module, "sluice.orchestration.daemon", "run", "-w", workspace]
