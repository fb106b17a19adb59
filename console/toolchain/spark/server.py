"""Runs a Spark Connect server with Delta as a child process, for `sluice up`, the demo, the tests and the benchmarks.

The settings of the server are in spark-defaults.conf, in the user's conf/ or in the package. This module adds the settings that depend on
the machine: jars, memory, port, directories. Spark downloads no packages at its start, because all jars are in the cache.
"""

import dataclasses
import os
import re
import shutil
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from sluice.console.toolchain.cache import open_cache
from sluice.console.toolchain.errors import PortTakenError, ServerError
from sluice.console.toolchain.grpc_probe import GrpcProbe
from sluice.console.toolchain.java import Java
from sluice.console.toolchain.ports import LOOPBACK, free_port, require_free
from sluice.console.toolchain.process import ChildProcess, last_lines
from sluice.console.toolchain.setup import set_up
from sluice.console.toolchain.spark import log_store
from sluice.console.toolchain.spark.class_archive import class_archive, reading_options, writing_options
from sluice.console.toolchain.spark.collector import collector_options
from sluice.console.toolchain.spark.home import spark_home
from sluice.package_files import package_file

SETTINGS_FILE = package_file("conf/spark-defaults.conf")
LOG_SETTINGS_FILE = Path(__file__).with_name("spark-log4j2.properties")
SERVER_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
WARM_UP = "sluice.console.toolchain.spark.warmup"
WARM_SECONDS_MAX = 300
PYTHON_DAEMON = "sluice.console.toolchain.spark.python_daemon"
# Matches the settings of log stores in a properties file. Delta does not allow a log store for all schemes (`class`) together with a log
# store for a single scheme.
LOG_STORE = re.compile(r"^\s*(?:spark\.)?delta\.logStore\.(\w+\.impl|class)\b", re.MULTILINE)
# ACCOUNTS has a pair of patterns for Google, and a pair for Azure. If a line of the settings file matches the first pattern, the file
# configures an account. The server then does not get the settings of Sluice's account, which match the second pattern, because the store's
# client cannot combine two accounts.
AZURE_ACCOUNT = r"spark\.hadoop\.fs\.azure\.(account\.(auth|key|oauth2?)|sas)\b"
ACCOUNTS = ((r"spark\.hadoop\.fs\.gs\.auth\.type\b", r"spark\.hadoop\.fs\.gs\.auth\."), (AZURE_ACCOUNT, AZURE_ACCOUNT))
# Matches a value of spark.master with which tasks run in the server's process. The group is the number of tasks that run at the same time.
SLOTS = re.compile(r"local\[(\d+)\]")
MASTER = re.compile(r"^\s*spark\.master\s*[\s=:]\s*(\S+)", re.MULTILINE)  # Matches spark.master in a properties file.
START_SECONDS_MAX = 180.0
POLL_SECONDS = 0.1
STOP_SECONDS_MAX = 20.0
# Environment variables of the caller that are not passed to the server, because they would change its settings.
FOREIGN_VARIABLES = ("SPARK_CONF_DIR", "SPARK_REMOTE", "SPARK_MASTER", "PYSPARK_SUBMIT_ARGS", "SPARK_LOCAL_DIRS")


@dataclasses.dataclass(frozen=True)
class ClassRecording:
    """Makes a server with this Java runtime write its loaded classes to `file` when the server ends."""

    java: Java
    file: Path


@dataclasses.dataclass(frozen=True)
class ServerSettings:
    """The settings of a server. `file` is a properties file, and `more` are settings that override it. `home` is a SPARK_HOME of another
    version of Spark. If `home` is None, the SPARK_HOME of the installed pyspark is used.
    """

    file: Path = SETTINGS_FILE
    more: Mapping[str, str] = dataclasses.field(default_factory=dict)
    home: Path | None = None


DEFAULT_SETTINGS = ServerSettings()


class SparkConnectServer:
    """A Spark Connect server on 127.0.0.1. The server's warehouse, scratch space and log are in one directory."""

    def __init__(
        self,
        jars: Sequence[Path] | None,
        data_dir: Path,
        port: int | None = None,
        memory: str = "4g",
        *,
        settings: ServerSettings = DEFAULT_SETTINGS,
        extras: Sequence[str] = (),
        die_with_parent: bool = True,
        recording: ClassRecording | None = None,
    ) -> None:
        """Describes a server; `start` starts the server. If `jars` is None, the server gets the cached jars of Delta and of the `extras`.
        If `port` is None, a free port is chosen. `memory` is the size of Java's heap. With `die_with_parent`, the server is killed when
        this process dies. With `recording`, the server writes its loaded classes to a file when it ends.
        """
        self.folder = data_dir.absolute()
        self.memory = memory
        self._jars = jars
        self._java = recording.java if recording is not None else None
        self._settings_file = settings.file
        self._wanted_port = port
        self._port = port
        self._settings = dict(settings.more)
        self._other_home = settings.home
        self._extras = tuple(extras)
        self._secrets: dict[str, str] = {}
        self._die_with_parent = die_with_parent
        self._archives_to = recording.file if recording is not None else None
        self._process: ChildProcess | None = None
        self._probe = GrpcProbe(self.port, _ping_spark)

    @property
    def port(self) -> int:
        """The port on which the server listens. A restart does not change the port."""
        if self._port is None:
            self._port = free_port()
        return self._port

    @property
    def url(self) -> str:
        """The address that SparkSession.builder.remote() needs."""
        return f"sc://{LOOPBACK}:{self.port}"

    def commits_conditionally(self, store: str) -> bool:
        """Returns whether this server commits to Delta tables in `store`, "s3" or "google", with Sluice's log store."""
        return log_store.SETTINGS[store][0] in self._log_stores()

    @property
    def log(self) -> Path:
        """The file with the server's warnings and errors."""
        return self.folder / "spark.log"

    @property
    def pid(self) -> int:
        """The process id of the server that was started last, which is the Java process. Raises ServerError if no server was started."""
        if self._process is None:
            raise ServerError(f"The Spark server in {self.folder} was not started.")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the server's process runs."""
        return self._process is not None and self._process.running

    def start(self) -> "SparkConnectServer":
        """Starts the server, and returns when the server has answered a request. Raises ServerError if the server does not start."""
        if self.running:
            return self
        try:
            self.begin()
            end = time.monotonic() + START_SECONDS_MAX
            while not self.answers():
                if self.ended:
                    raise self._start_failed(self.ended)
                if time.monotonic() > end:
                    raise self._start_failed(f"did not answer within {START_SECONDS_MAX:.0f} s")
                time.sleep(POLL_SECONDS)
        except BaseException:
            self.kill()
            raise
        return self

    def begin(self) -> None:
        """Starts the server's process, and returns immediately. The caller must wait until `answers` returns True. Raises PortTakenError if
        another program has the port.
        """
        require_free(self.port, "the Spark Connect server")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._probe.forget()
        self._process = ChildProcess(
            self._command(),
            self.log,
            environment=self._environment(),
            folder=self.folder,
            die_with_parent=self._die_with_parent,
        )

    def replace_process(self) -> NoReturn:
        """Replaces the current process with the server, which then writes its log to the output of the process."""
        require_free(self.port, "the Spark Connect server")
        self.folder.mkdir(parents=True, exist_ok=True)
        command = self._command()
        os.chdir(self.folder)
        os.execve(command[0], command, self._environment())  # noqa: S606  our own program

    def warm_up_command(self, folder: Path, idle_seconds_max: float = 0.0) -> list[str]:
        """Returns the command that runs the first merges on a running server, with tables in `folder`. The command ends when the server
        ends, and at the latest after WARM_SECONDS_MAX. First, the command waits at most `idle_seconds_max` until the processors are idle.
        """
        return [sys.executable, "-m", WARM_UP, self.url, str(folder), str(WARM_SECONDS_MAX), str(idle_seconds_max)]

    @property
    def ended(self) -> str:
        """How the server's process ended: "exit code 1", "signal 9" or "never started". This text is empty while the process runs."""
        return self._process.ended if self._process else "never started"

    def answers(self) -> bool:
        """Returns whether the server has answered a request. Does not wait for the answer. Raises ServerError if the server will not answer
        later either.
        """
        try:
            return self._probe.answers()
        except ServerError as error:
            raise self._start_failed(f"does not answer: {error}") from error

    def stop(self, seconds_max: float = STOP_SECONDS_MAX) -> None:
        """Shuts the server down. Kills the server if it has not ended after `seconds_max`. Removes the server's scratch directory."""
        if self._process:
            self._process.stop(seconds_max)
        shutil.rmtree(self.folder / "scratch", ignore_errors=True)

    def kill(self) -> None:
        """Ends the server with SIGKILL, for example to simulate a crash."""
        if self._process:
            self._process.kill()

    def restart(self) -> None:
        """Stops the server and starts it again on the same port."""
        self.stop()
        self.start()

    def __enter__(self) -> "SparkConnectServer":
        """Starts the server at the start of a with block."""
        return self.start()

    def __exit__(self, *_: object) -> None:
        """Stops the server at the end of a with block."""
        self.stop()

    def _command(self) -> list[str]:
        self.provide()
        scratch = self.folder / "scratch"
        machine = {
            "spark.jars": ",".join(str(jar) for jar in (*(self._jars or ()), *self._own_jars())),
            "spark.driver.memory": self.memory,
            "spark.driver.extraJavaOptions": " ".join(self._java_options(scratch)),
            "spark.local.dir": str(scratch),
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.ui.enabled": "false",
            **({"spark.python.daemon.module": PYTHON_DAEMON} if self._is_local() and not self._other_home else {}),
            **self._log_stores(),
        }
        scratch.mkdir(parents=True, exist_ok=True)
        pairs = [part for item in {**machine, **self._given_settings()}.items() for part in ("--conf", "=".join(item))]
        submit = str(self._home() / "bin" / "spark-submit")
        return [
            submit,
            "--properties-file",
            str(self._settings_file),
            *pairs,
            "--class",
            SERVER_CLASS,
            "spark-internal",
        ]

    def _own_jars(self) -> tuple[Path, ...]:
        """Returns the jar with Sluice's log stores. Returns no jar if none of the server's `extras` needs a log store of Sluice."""
        return (log_store.JAR,) if log_store.SETTINGS.keys() & set(self._extras) else ()

    def _log_stores(self) -> dict[str, str]:
        """Returns the settings that select Sluice's log stores. A store is left out if the settings file names a log store for it. All
        stores are left out if the file names one log store for all schemes.
        """
        named = set(LOG_STORE.findall(self._settings_file.read_text()))
        ours = dict(log_store.SETTINGS[store] for store in self._extras if store in log_store.SETTINGS)
        return {
            setting: name
            for setting, name in ours.items()
            if not {"class", setting.removeprefix("spark.delta.logStore.")} & named
        }

    def _given_settings(self) -> dict[str, str]:
        """Returns the settings that the caller of this class has added. If the settings file configures an account of Google or Azure, the
        caller's settings of an account in the same store are left out, because the store's client cannot combine two accounts.
        """
        text = self._settings_file.read_text()
        replaced = [setting for line, setting in ACCOUNTS if re.search(rf"^\s*{line}", text, re.MULTILINE)]
        return {
            name: value
            for name, value in self._settings.items()
            if not any(re.match(setting, name) for setting in replaced)
        }

    def _is_local(self) -> bool:
        """Returns whether tasks run on this machine, where Python can import Sluice's packages. Executors of a cluster cannot."""
        return self._master().startswith("local")

    def _task_slots(self) -> int:
        """Returns how many tasks run at the same time in the server's process. Returns 0 if `spark.master` does not contain the number."""
        slots = SLOTS.fullmatch(self._master())
        return int(slots[1]) if slots else 0

    def _master(self) -> str:
        """Returns the value of `spark.master`, which says where tasks run. The caller's settings override the settings file. Returns
        "local" if neither contains `spark.master`.
        """
        of_file = MASTER.findall(self._settings_file.read_text())
        return self._settings.get("spark.master") or (of_file or ["local"])[-1]

    def _java_options(self, scratch: Path) -> list[str]:
        options = [
            f"-Dlog4j2.configurationFile={LOG_SETTINGS_FILE.as_uri()}",
            *collector_options(self._task_slots()),
            "-Xss4m",
            "-XX:ReservedCodeCacheSize=512m",
            f"-Djava.io.tmpdir={scratch}",
        ]
        if self._archives_to is not None:
            return [*options, *writing_options(self._archives_to)]
        if self._java is None or self._other_home is not None:
            return options
        return [*options, *reading_options(class_archive(open_cache(), self._java))]

    def _home(self) -> Path:
        return self._other_home or spark_home(open_cache())

    def provide(self) -> None:
        """Finds the Java runtime and the jars of this server. Installs or downloads those that are missing."""
        if self._jars is None or self._java is None:
            toolchain = set_up([], extras=self._extras)
            ours = (*toolchain.delta_jars, *toolchain.extra_jars)
            self._jars = ours if self._jars is None else self._jars
            self._java = self._java or toolchain.java

    def add_settings(self, settings: Mapping[str, str], environment: Mapping[str, str]) -> None:
        """Adds settings and environment variables for the next start. Credentials must be in `environment`, because settings are visible
        in the command line, the UI and the log.
        """
        self._settings |= settings
        self._secrets |= environment

    def _environment(self) -> dict[str, str]:
        own = {key: value for key, value in os.environ.items() if key not in FOREIGN_VARIABLES}
        java_home = {"JAVA_HOME": str(self._java.home)} if self._java else {}
        # Spark's tasks use the Python interpreter of this process, because the tasks that merge small tables need Sluice's packages.
        python = {"PYSPARK_PYTHON": sys.executable}
        return {
            **own,
            **self._secrets,
            **java_home,
            **python,
            "SPARK_HOME": str(self._home()),
            "SPARK_LOCAL_IP": LOOPBACK,
        }

    def _start_failed(self, what: str) -> ServerError:
        end = last_lines(self.log)
        if "BindException" in end:
            return PortTakenError(
                f"Port {self.port} of the Spark server is taken by another program; choose another port."
            )
        return ServerError(f"The Spark server {what}; its log {self.log} ends: {end}")


def _ping_spark(channel: Any, seconds_max: float) -> Any:
    """Sends a request that creates a session and asks for Spark's version. Spark answers only after it has loaded Delta's extensions."""
    from pyspark.sql.connect.proto import base_pb2, base_pb2_grpc  # noqa: PLC0415  pyspark takes a second to import

    request = base_pb2.AnalyzePlanRequest(
        session_id=str(uuid.uuid4()), spark_version=base_pb2.AnalyzePlanRequest.SparkVersion()
    )
    stub: Any = base_pb2_grpc.SparkConnectServiceStub
    return stub(channel).AnalyzePlan.future(request, timeout=seconds_max)
