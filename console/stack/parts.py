"""Defines the parts that the supervisor starts: Dagster's three processes, the engine, Spark, and the warm-up of Spark."""

from __future__ import annotations

import dataclasses
import math
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import psutil

from sluice.console.stack.processes import ProcessFile, ProcessRecord, find, port_owner
from sluice.console.toolchain.errors import PortTakenError
from sluice.console.toolchain.grpc_probe import GrpcProbe
from sluice.console.toolchain.ports import is_free
from sluice.console.toolchain.process import ChildProcess
from sluice.console.toolchain.spark.server import SparkConnectServer

POLL_SECONDS = 0.2
DYING_SECONDS_MAX = 3.0
WEBSERVER_ANSWER_SECONDS_MAX = 2.0
# If the warm-up of Spark takes longer than `patience_seconds`, the supervisor's next call of `WarmUp.answers` ends the warm-up, which then
# counts as done. On a very busy machine, the supervisor may call `answers` late. Therefore the supervisor counts the warm-up as failed only
# this many seconds after `patience_seconds`.
LOOK_SECONDS_MAX = 60.0
GONE = "the exit code of the process is unknown"

Answers = Callable[[], bool]


class Process(Protocol):
    """A child process that was started for a part. `ended` says how the process ended, and is empty while it runs."""

    @property
    def pid(self) -> int: ...

    @property
    def ended(self) -> str: ...

    def kill(self) -> None: ...


@dataclasses.dataclass(frozen=True)
class PartPort:
    """The port on which a part listens, or 0 if it listens on none. `advice` says what to do if another program has the port."""

    number: int
    advice: str


class ProcessPart:
    """A part that is a process, which processes.json records. Either this object or an earlier `sluice up` has started the process.

    `start` starts the process. `question` gets the record of the process, and returns a function that checks whether the process answers.
    """

    once = False

    def __init__(
        self,
        name: str,
        after: tuple[str, ...],
        file: ProcessFile,
        *,
        log: Path,
        start: Callable[[], Process],
        question: Callable[[ProcessRecord], Answers],
        port: PartPort,
        seconds_max: float,
    ) -> None:
        self.name, self.after, self.log, self.seconds_max = name, after, log, seconds_max
        self._file, self._start, self._question = file, start, question
        self._port, self._port_advice = port.number, port.advice
        self.child: Process | None = None
        self._record = next((record for record in file.load() if record.name == name), None)
        self._answers = question(self._record) if self._record and find(self._record) else None

    def begin(self) -> None:
        self.end()
        self.require_port()
        self.child = self._start()
        try:
            self._record = self._file.add(self.name, self.child.pid, self._port)
        except psutil.NoSuchProcess:  # The process has ended, and `ended` says how.
            self._record = None
        self._answers = self._question(self._record) if self._record else None

    def end(self) -> None:
        """Kills the process if this object started it. A process of an earlier `sluice up` continues, because only `Stack.down` ends the
        processes of an earlier `sluice up`, in the right order.
        """
        if self.child:
            self.child.kill()
            self._file.remove([self.name])
        self.child = None

    def ended(self) -> str:
        if self.child:
            return self.child.ended
        return "" if self._record and find(self._record) else GONE

    def port_taken(self) -> bool:
        return bool(self._port) and not is_free(self._port)

    def answers(self) -> bool:
        return bool(self._answers and self._answers())

    def require_port(self) -> None:
        """Raises PortTakenError if another program has had the part's port for DYING_SECONDS_MAX. The wait is needed because the kernel may
        free the port of a killed process late. The message names the other program.
        """
        end = time.monotonic() + DYING_SECONDS_MAX
        while self._port and not is_free(self._port):
            if time.monotonic() > end:
                owner = port_owner(self._port) or "another program"
                raise PortTakenError(
                    f"Port {self._port}, wanted for the {self.name}, is taken by {owner};"
                    f" stop that program or {self._port_advice}."
                )
            time.sleep(POLL_SECONDS)


class WarmUp:
    """Runs Spark's first merge in a separate program (the warm-up), so that no user has to wait for it. This part is a task: it is done
    when the program has ended without an error.

    The warm-up only saves time. If it takes longer than `patience_seconds`, it is ended, and the supervisor continues without it. Without
    `die_with_parent`, the program continues after this process has ended.
    """

    name, once = "warm-up of Spark", True

    def __init__(
        self,
        command: Sequence[str],
        after: tuple[str, ...],
        log: Path,
        patience_seconds: float,
        say: Callable[[str], None],
        *,
        die_with_parent: bool = True,
    ) -> None:
        self.after, self.log, self.seconds_max = after, log, patience_seconds + LOOK_SECONDS_MAX
        self._command, self._patience_seconds, self._say = command, patience_seconds, say
        self._die_with_parent = die_with_parent
        self._child: ChildProcess | None = None
        self._given_up_at = math.inf

    def begin(self) -> None:
        self.end()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._given_up_at = time.monotonic() + self._patience_seconds
        self._child = ChildProcess(self._command, self.log, die_with_parent=self._die_with_parent)

    def end(self) -> None:
        if self._child:
            self._child.kill()
        self._child = None

    def ended(self) -> str:
        return self._child.ended if self._child else GONE

    def port_taken(self) -> bool:
        return False

    def answers(self) -> bool:
        if self._child is not None and self._child.running and time.monotonic() > self._given_up_at:
            self._say(
                f"the {self.name} was ended, because it took more than {self._patience_seconds:.0f} s; Spark's first "
                "merges will be slow"
            )
            self.end()
            return True
        return self._child is not None and self._child.exit_code == 0


class SparkProcess:
    """The process of a Spark server, with the methods that `ProcessPart` needs."""

    def __init__(self, server: SparkConnectServer) -> None:
        self._server = server
        server.begin()

    @property
    def pid(self) -> int:
        return self._server.pid

    @property
    def ended(self) -> str:
        return self._server.ended

    def kill(self) -> None:
        self._server.kill()


def code_server_check(port: int) -> Callable[[ProcessRecord], Answers]:
    """Returns a function that gets a process record and returns a check. The check returns True if the code server answers a gRPC ping."""

    def ping(channel: Any, seconds_max: float) -> Any:
        from dagster._grpc.__generated__ import dagster_api_pb2, dagster_api_pb2_grpc  # noqa: PLC0415  takes seconds

        request = dagster_api_pb2.PingRequest(echo="up")
        stub: Any = dagster_api_pb2_grpc.DagsterApiStub
        return stub(channel).Ping.future(request, timeout=seconds_max)

    return lambda _: GrpcProbe(port, ping).answers


def webserver_check(url: str) -> Callable[[ProcessRecord], Answers]:
    """Returns a function that gets a process record and returns a check. The check returns True if the webserver delivers its page
    /server_info.
    """

    def answers() -> bool:
        try:
            with urllib.request.urlopen(f"{url}/server_info", timeout=WEBSERVER_ANSWER_SECONDS_MAX) as answer:  # noqa: S310  our own URL
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    return lambda _: answers


def daemon_check(dagster_home: Path) -> Callable[[ProcessRecord], Answers]:
    """Returns a function that gets a process record and returns a check. The check returns True if the last heartbeat of the daemon's
    sensors is later than the start of the daemon's process.
    """

    def of(record: ProcessRecord) -> Answers:
        from dagster import DagsterInstance  # noqa: PLC0415  dagster takes seconds to import

        instance = DagsterInstance.from_config(str(dagster_home))

        def beats() -> bool:
            beat = instance.get_daemon_heartbeats().get("SENSOR")
            return beat is not None and beat.timestamp >= time.time() - record.age_seconds()

        return beats

    return of
