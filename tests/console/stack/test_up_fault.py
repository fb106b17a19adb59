"""Tests that `sluice up` reacts to SIGINT in each phase and leaves nothing, notices each death, and restarts
everything in the foreground.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sluice.console.stack.processes import MARK, ProcessFile, find
from sluice.console.stack.stack import CODE_SERVER, DAEMON, SPARK, SUPERVISOR, WEBSERVER
from tests.waiting import wait_for

PROCESSES = (CODE_SERVER, SPARK, WEBSERVER, DAEMON)
# Each phase has the name of the process that does not answer yet. Its value has what must answer so that `sluice up` waits in this phase.
PHASES = {
    CODE_SERVER: (SPARK, "warm"),
    SPARK: (CODE_SERVER, WEBSERVER),
    WEBSERVER: (CODE_SERVER, SPARK, "warm"),
    DAEMON: (CODE_SERVER, SPARK, WEBSERVER),  # Spark warms up meanwhile.
}


class Up:
    """Runs one `sluice up` with fake parts, and collects its output."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "conf" / "destinations").mkdir(parents=True)
        self.file = ProcessFile(folder / "data" / "processes.json")
        self.said = folder / "said"
        self.program: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str, **environment: str) -> None:
        with self.said.open("ab") as output:
            self.program = subprocess.Popen(
                [sys.executable, "-m", "tests.console.stack.up_with_fakes", str(self.folder), *arguments],
                stdout=output,
                stderr=output,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    def answer(self, *names: str) -> None:
        for name in names:
            (self.folder / name).touch()

    def wait_for_process(self, name: str, other_than: int = 0) -> int:
        def pid() -> int:
            record = self.file.running().get(name)
            return record.pid if record and record.pid != other_than else 0

        return wait_for(f"the {name} lives; said: {self.said.read_text()}", pid)

    def wait_until_said(self, words: str) -> None:
        wait_for(f"said: {words}", lambda: words in self.said.read_text())

    def send(self, number: signal.Signals) -> int:
        assert self.program
        self.program.send_signal(number)
        return self.program.wait(20)

    def left(self) -> list[int]:
        """Returns the running processes with the mark of this test, and the supervisor."""
        marked = []
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                if process.environ().get(MARK) == str(self.file.path) and process.status() != psutil.STATUS_ZOMBIE:
                    marked.append(process.pid)
        return marked


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    made = Up(tmp_path)
    yield made
    if made.program and made.program.poll() is None:
        made.program.kill()
        made.program.wait()
    for pid in made.left():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("phase", PHASES)
def test_fault_up_hears_a_signal_in_each_phase_and_leaves_nothing(up: Up, phase: str, number: signal.Signals) -> None:
    up.answer(*PHASES[phase])
    up.start()
    for name in PROCESSES:
        if name in {CODE_SERVER, SPARK, phase}:
            up.wait_for_process(name)
    if phase == DAEMON:
        up.wait_until_said("starting the warm-up of Spark")
    assert up.send(number) != 0
    assert "interrupted; ending the processes that were started" in up.said.read_text()
    assert up.left() == []
    assert up.file.load() == []


def test_up_does_not_wait_for_the_warm_up_which_continues(up: Up) -> None:
    up.answer(*PROCESSES)
    up.start()
    assert up.program
    assert up.program.wait(30) == 0, up.said.read_text()
    assert "starting the warm-up of Spark" in up.said.read_text()
    (warm,) = (each for each in psutil.process_iter() if str(up.folder / "warm") in " ".join(_command(each)))
    up.answer("warm")
    warm.wait(30)


def _command(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        command: list[str] = process.cmdline()
        return command
    return []


def test_fault_spark_killed_while_it_warms_up_is_started_and_warmed_again(up: Up) -> None:
    up.answer(*PROCESSES)
    up.start("foreground")
    up.wait_until_said("starting the warm-up of Spark")
    first = up.wait_for_process(SPARK)
    wait_for("the first words of its log", lambda: "spark is here" in (up.folder / f"{SPARK}.log").read_text())
    os.kill(first, signal.SIGKILL)
    up.wait_for_process(SPARK, other_than=first)
    wait_for("the second warm-up", lambda: up.said.read_text().count("starting the warm-up of Spark") == 2)
    assert "Spark ended (signal 9)" in up.said.read_text()
    assert "spark is here" in up.said.read_text(), "the last lines of its log"
    assert up.send(signal.SIGTERM) == 0
    assert up.left() == []


def test_fault_a_code_server_killed_while_up_waits_for_spark_is_started_again(up: Up) -> None:
    up.answer(CODE_SERVER, WEBSERVER, DAEMON, "warm")
    up.start()
    up.wait_for_process(SPARK)
    first = up.wait_for_process(CODE_SERVER)
    up.wait_for_process(WEBSERVER)
    os.kill(first, signal.SIGKILL)
    up.wait_for_process(CODE_SERVER, other_than=first)
    up.answer(SPARK)
    assert up.program
    assert up.program.wait(30) == 0
    assert set(up.file.running()) == set(PROCESSES)


def test_up_finds_what_runs_and_starts_only_what_has_died(up: Up) -> None:
    up.answer(*PROCESSES, "warm")
    up.start()
    assert up.program
    assert up.program.wait(30) == 0
    before = {name: record.pid for name, record in up.file.running().items()}
    os.kill(before[WEBSERVER], signal.SIGKILL)
    wait_for("it is gone", lambda: WEBSERVER not in up.file.running())
    up.start()
    assert up.program.wait(30) == 0
    after = {name: record.pid for name, record in up.file.running().items()}
    assert {name for name in PROCESSES if after[name] != before[name]} == {WEBSERVER}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_fault_foreground_keeps_each_alive_and_ends_all_in_order(up: Up, number: signal.Signals) -> None:
    up.answer(*PROCESSES, "warm")
    up.start("foreground")
    up.wait_until_said("all parts answer")
    for name in PROCESSES:
        first = up.wait_for_process(name)
        os.kill(first, signal.SIGKILL)
        up.wait_for_process(name, other_than=first)
    assert up.send(number) == 0
    assert "0 processes are left" in up.said.read_text()
    assert up.left() == []
    assert up.file.load() == []


def test_fault_foreground_killed_leaves_nothing(up: Up) -> None:
    up.answer(*PROCESSES, "warm")
    up.start("foreground")
    up.wait_until_said("all parts answer")
    up.send(signal.SIGKILL)
    wait_for("the watchers have killed their children", lambda: not up.left())
    up.start("foreground")
    up.wait_for_process(DAEMON)


def test_foreground_is_alone_and_known_to_others(up: Up) -> None:
    up.answer(*PROCESSES, "warm")
    up.start("foreground")
    up.wait_until_said("all parts answer")
    first, said = up.program, up.said.read_text()
    up.start("foreground")
    assert up.program
    assert up.program.wait(20) != 0
    assert (
        f"Sluice is already running {SUPERVISOR}" in up.said.read_text()
        or "Sluice is already running " in up.said.read_text()
    )
    up.start()
    assert up.program.wait(20) == 0
    assert "runs already and restarts processes that die" in up.said.read_text().removeprefix(said)
    up.program = first


def test_systemd_gets_the_notifications_that_it_expects(up: Up, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(60)
        up.answer(*PROCESSES, "warm")
        up.start("foreground", NOTIFY_SOCKET=str(tmp_path / "notify"))
        assert listener.recv(99) == b"READY=1"
        assert all(find(record) for record in up.file.load())
        assert up.send(signal.SIGTERM) == 0
        assert listener.recv(99) == b"STOPPING=1"
