"""Records in a file which processes Sluice has started, and stops only these processes.

A process is identified by its id *and* its start time, so another program that gets the same id later is not taken for it. The start time
is counted from the boot of the machine, so setting the clock does not change the start time. If a process has died, its children are
identified by its process group and by the environment variable that `MARK` names.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.config.engine import LOOPBACK, host_and_port

ENGINE = "engine"  # The engine is a part only if conf/ configures it as a separate process on this host.
DAGSTER_PARTS = ("code server", "daemon", "webserver")
# The parts that `sluice up` starts. Spark is started only if conf/ configures the local Spark.
PARTS = (*DAGSTER_PARTS, "spark")
# Every process that Sluice starts has this environment variable. The variable's value is the path of the processes.json that records the
# process.
MARK = "SLUICE_PROCESSES"
BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
# Two measurements of one process's start time differ by at most this many seconds, because psutil rounds the boot time to a second.
START_TIME_SLACK_SECONDS = 1.0
POLL_SECONDS = 0.1
# After SIGKILL, Sluice waits at most this many seconds for the end of a process. The kernel usually ends a process in a moment.
KILL_SECONDS_MAX = 5.0


@dataclasses.dataclass(frozen=True)
class ProcessRecord:
    """A process that Sluice started.

    - `started` is the time from the boot of the machine to the start of the process, in seconds.
    - `boot` is the kernel's id of this boot. After another boot, another process may have the same process id and start time.
    - `port` is the port on which the process listens, or 0 if it listens on none.
    """

    name: str
    pid: int
    started: float
    boot: str
    port: int = 0

    def age_seconds(self) -> float:
        """Returns for how long the process has run, in seconds. Setting the clock does not change the result."""
        return time.clock_gettime(time.CLOCK_BOOTTIME) - self.started


@dataclasses.dataclass(frozen=True)
class StopStep:
    """One of the steps that end a process. `act` is called once. If the process still runs after `seconds`, the next step begins."""

    act: Callable[[ProcessRecord], None]
    seconds: float


class ProcessFile:
    """The records of running processes, in <data_dir>/processes.json. A change replaces the whole file atomically."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Spark starts in parallel with the other parts, so two threads may change the file.
        self._lock = threading.Lock()

    def load(self) -> list[ProcessRecord]:
        """Returns all records, in the order in which the processes started. Returns an empty list if the file does not exist or cannot be
        read.
        """
        try:
            return [ProcessRecord(**record) for record in json.loads(self.path.read_text())]
        except (OSError, ValueError, TypeError):
            return []

    def save(self, records: Sequence[ProcessRecord]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        scratch = self.path.with_suffix(".new")
        scratch.write_text(json.dumps([dataclasses.asdict(record) for record in records], indent=1))
        scratch.replace(self.path)

    def add(self, name: str, pid: int, port: int = 0) -> ProcessRecord:
        """Records a process that was just started. The record replaces an earlier record with the same name. Raises psutil.NoSuchProcess if
        the process has ended already.
        """
        record = ProcessRecord(name, pid, _started(psutil.Process(pid)), _boot_id(), port)
        with self._lock:
            self.save([other for other in self.load() if other.name != name] + [record])
        return record

    def remove(self, names: Iterable[str]) -> None:
        gone = set(names)
        with self._lock:
            self.save([record for record in self.load() if record.name not in gone])

    def running(self) -> dict[str, ProcessRecord]:
        """Returns name → record for each recorded process that still runs."""
        return {record.name: record for record in self.load() if find(record)}


def part_names(config: SluiceConfig) -> tuple[str, ...]:
    """Returns the names of Sluice's processes that conf/ configures for this host (ENGINE, PARTS). Spark is included only if `spark.remote`
    names this host and the port `ports.spark_connect`, and `spark.master` is empty. The engine is included only if it is a separate process
    on this host.
    """
    remote = urlsplit(config.spark.remote)
    local = remote.hostname in {"127.0.0.1", "localhost"} and remote.port == config.ports.spark_connect
    parts = PARTS if local and not config.spark.master else PARTS[:-1]
    return (ENGINE, *parts) if engine_port(config) else parts


def engine_port(config: SluiceConfig) -> int:
    """Returns the port on which the engine of this host listens, or 0 if this host has no separate engine process."""
    if config.engine.kind != "remote":
        return 0
    host, port = host_and_port(config.engine.listens_at)
    ours = host in LOOPBACK or host_and_port(config.engine.addresses[0])[0] in LOOPBACK
    return port if ours else 0


def find(record: ProcessRecord) -> psutil.Process | None:
    """Returns the running process of a record. Returns None if the process has ended, or if another program now has its id."""
    try:
        process = psutil.Process(record.pid)
        same = record.boot == _boot_id() and abs(_started(process) - record.started) <= START_TIME_SLACK_SECONDS
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None


def _started(process: psutil.Process) -> float:
    """Returns the seconds from the boot to the start of a process. psutil counts from 1970, so the boot time is subtracted. The boot time
    changes when the clock is set, and the result does not.
    """
    return process.create_time() - psutil.boot_time()


def _boot_id() -> str:
    return BOOT_ID_FILE.read_text().strip()


def members(record: ProcessRecord, mark: str = "") -> list[psutil.Process]:
    """Returns the process and its descendants.

    If the process is dead, returns the processes of its process group whose environment variable MARK has the value `mark`. For example,
    these are the run workers of a killed code server. If the process is dead and `mark` is empty, returns no process.
    """
    leader = find(record)
    if leader:
        with contextlib.suppress(psutil.NoSuchProcess):
            return [leader, *_living(leader.children(recursive=True))]
    # Returns nothing if another process now has the id of the dead process, because a process group with this id may belong to it.
    if not mark or psutil.pid_exists(record.pid):
        return []
    return [process for process in psutil.process_iter() if _is_orphan(process, record.pid, mark)]


def memory_mb(record: ProcessRecord) -> float:
    """Returns the resident memory of a process and its descendants in MiB."""
    total = 0
    for process in members(record):
        with contextlib.suppress(psutil.Error):
            total += process.memory_info().rss
    return round(total / 2**20, 1)


def terminate(record: ProcessRecord) -> None:
    """Sends SIGTERM to a process. The process then ends its own children."""
    _send(find(record), signal.SIGTERM)


def terminate_children(record: ProcessRecord) -> None:
    """Sends SIGTERM to the descendants of a process. A run worker then records in Dagster's storage that it was ended."""
    leader = find(record)
    if leader:
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in leader.children(recursive=True):
                _send(child, signal.SIGTERM)


def stop(record: ProcessRecord, steps: Sequence[StopStep], mark: str = "") -> list[int]:
    """Ends a process and its descendants, by the given steps and finally by SIGKILL. Returns the ids of processes that still run. With
    `mark`, also ends processes of the same process group whose environment variable MARK has this value.
    """
    family = members(record, mark)
    for step in steps:
        if not find(record):
            break
        step.act(record)
        _wait(lambda: find(record) is None, step.seconds)
    family += [process for process in members(record, mark) if process not in family]
    for process in _living(family):
        _send(process, signal.SIGKILL)
    _wait(lambda: not _living(family), KILL_SECONDS_MAX)
    return [process.pid for process in _living(family)]


def sweep(mark: str) -> list[int]:
    """Sends SIGKILL to every running process whose environment variable MARK has the value `mark`, except to this process. Returns the ids
    of the processes that still run.
    """
    marked = [process for process in psutil.process_iter() if process.pid != os.getpid() and _is_marked(process, mark)]
    for process in marked:
        _send(process, signal.SIGKILL)
    _wait(lambda: not _living(marked), KILL_SECONDS_MAX)
    return [process.pid for process in _living(marked)]


def data_dirs_of_running(conf: Path) -> list[Path]:
    """Returns the data directories of the running processes that were started with this conf/. Reads them from the environment of these
    processes.
    """
    found: set[Path] = set()
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            environment = process.environ()
            if MARK in environment and environment.get("SLUICE_CONF") == str(conf) and process.pid != os.getpid():
                found.add(Path(environment[MARK]).parent)
    return sorted(found)


def port_owner(port: int) -> str:
    """Returns the process that listens on a TCP port, as `name (pid 12)`. Returns "" if no such process is visible to this user."""
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            if (
                connection.status == psutil.CONN_LISTEN
                and connection.laddr
                and connection.laddr.port == port
                and connection.pid
            ):
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    return ""


def stopped(record: ProcessRecord) -> list[int]:
    """Returns the ids of a process and its descendants that are suspended by a signal or a debugger."""
    return [process.pid for process in members(record) if _is_stopped(process)]


def to_json(record: ProcessRecord) -> dict[str, Any]:
    """Returns the values that `status --json` shows of a process: those of the record, whether the process runs, its memory, and the ids of
    suspended processes.
    """
    alive = find(record) is not None
    rss_mb = memory_mb(record) if alive else 0.0
    facts = {"name": record.name, "pid": record.pid, "port": record.port, "alive": alive, "rss_mb": rss_mb}
    return {**facts, "stopped": stopped(record) if alive else []}


def _is_orphan(process: psutil.Process, group: int, mark: str) -> bool:
    try:
        return os.getpgid(process.pid) == group and _is_marked(process, mark)
    except OSError:
        return False


def _is_marked(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get(MARK) == mark
    except (OSError, psutil.Error):
        return False


def _living(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    return [process for process in processes if _is_living(process)]


def _is_stopped(process: psutil.Process) -> bool:
    try:
        return process.status() in {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP}
    except psutil.Error:
        return False


def _is_living(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _send(process: psutil.Process | None, number: signal.Signals) -> None:
    if process:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)  # psutil checks the start time again before it sends the signal.


def _wait(done: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not done() and time.monotonic() < end:
        time.sleep(POLL_SECONDS)
