"""Tests that a child process ends with its parent, on request, or by force, and that a used port is reported before anything starts."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.errors import PortTakenError
from sluice.console.toolchain.ports import is_free, listens
from sluice.console.toolchain.process import ChildProcess, last_lines
from sluice.console.toolchain.spark.server import SparkConnectServer
from tests.waiting import wait_for, wait_until_gone

STUBBORN = ["/bin/sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done"]

PARENT = """
import sys, time
from pathlib import Path
from sluice.console.toolchain.process import ChildProcess
print(ChildProcess(["sleep", "600"], Path(sys.argv[1])).pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_child_dies_with_a_killed_parent(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child_pid = int(parent.stdout.readline())
        assert Path(f"/proc/{child_pid}").exists()
        parent.kill()
    assert wait_until_gone(child_pid, 5)


def test_child_that_ignores_the_request_is_killed_at_the_deadline(tmp_path: Path) -> None:
    log = tmp_path / "log"
    child = ChildProcess(STUBBORN, log)
    while "ready" not in last_lines(log):
        time.sleep(0.01)
    child.stop(0.2)
    assert child.exit_code == -signal.SIGKILL
    assert wait_until_gone(child.pid, 1)


@pytest.mark.found
def test_a_process_that_the_child_started_ends_with_the_child(tmp_path: Path) -> None:
    """Defect 1110: if a child obeyed SIGTERM, `stop` left a process running that this child had started, and that ignores SIGTERM."""
    log, deaf = tmp_path / "log", """trap "" TERM; echo ready $$; while :; do sleep 0.1; done"""
    child = ChildProcess(["/bin/sh", "-c", f"/bin/sh -c '{deaf}' & wait"], log)
    wait_for("the process has started", lambda: "ready" in last_lines(log))
    pid = int(last_lines(log).split()[1])
    child.stop(0.2)
    assert child.exit_code == -signal.SIGTERM
    try:
        assert wait_until_gone(pid, 5)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_process_that_the_child_started_has_the_same_time_to_end(tmp_path: Path) -> None:
    log, slow = (
        tmp_path / "log",
        """trap "sleep 0.3; echo orderly; exit" TERM; echo ready; while :; do sleep 0.1; done""",
    )
    child = ChildProcess(["/bin/sh", "-c", f"/bin/sh -c '{slow}' & wait"], log)
    wait_for("the process has started", lambda: "ready" in last_lines(log))
    child.stop(20)
    assert last_lines(log).endswith("orderly")


def test_child_hears_ctrl_c_also_where_its_parent_does_not(tmp_path: Path) -> None:
    """A child normally inherits the ignored signals of its parent. A shell that starts `sluice up` in the background makes `sluice up`
    ignore SIGINT. Its children must not ignore it.
    """
    earlier = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        child = ChildProcess(["/bin/sh", "-c", "echo ready; kill -INT $$; echo deaf"], tmp_path / "log")
    finally:
        signal.signal(signal.SIGINT, earlier)
    wait_for("the child has ended", lambda: not child.running)
    assert child.exit_code == -signal.SIGINT
    assert last_lines(tmp_path / "log") == "ready"
    child.kill()


def test_taken_port_is_seen(taken_port: int) -> None:
    assert listens(taken_port)
    assert not is_free(taken_port)


@pytest.mark.servers
def test_database_server_names_a_taken_port(taken_port: int, tmp_path: Path) -> None:
    server = DatabaseServer("mariadb-10.11.5", tmp_path / "server", port=taken_port)
    with pytest.raises(PortTakenError, match=f"Port {taken_port}, wanted for mariadb-10.11.5, is taken"):
        server.start()
    assert not server.running


@pytest.mark.spark
def test_spark_server_names_a_taken_port(taken_port: int, tmp_path: Path) -> None:
    server = SparkConnectServer([], tmp_path / "spark", port=taken_port)
    with pytest.raises(PortTakenError, match="or choose another port"):
        server.start()
    assert not server.running


@pytest.mark.found
def test_the_end_of_a_log_is_what_is_wrong_and_not_the_usage_after_it(tmp_path: Path) -> None:
    """Defect 29: if Spark did not start, `up` printed the last lines of spark-submit's usage."""
    log = tmp_path / "log"
    usage = "Usage: spark-submit [options] <app jar>\nUsage: spark-submit --kill [id]\n\nOptions:\n  --master MASTER_URL   spark://host\n"
    log.write_text(
        f"warning\nError: Unrecognized option: --nonsense\n\n{usage}\n Spark Connect only:\n   --remote URL   Where\n"
    )
    assert last_lines(log) == "warning | Error: Unrecognized option: --nonsense"
    log.write_text("first\nException: no\n   at one\n   at two\n")
    assert last_lines(log) == "first | Exception: no | at one | at two"
