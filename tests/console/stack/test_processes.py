"""Tests that processes of a stack are stopped completely, and that processes of other owners are left alone."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sluice.console.stack import processes
from sluice.console.stack.processes import MARK, ProcessFile, ProcessRecord, StopStep
from tests.waiting import wait_for

SLEEP = "import time; time.sleep(600)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
)
PARENT = f"import subprocess, sys, time; c = subprocess.Popen([sys.executable, '-c', {SLEEP!r}]); print(c.pid, flush=True); time.sleep(600)"


class Programs:
    """Starts Python programs, each in a group of its own, and ends what a failed test left."""

    def __init__(self, folder: Path) -> None:
        self.file = ProcessFile(folder / "processes.json")
        self.mark = str(self.file.path)
        self.started: list[subprocess.Popen[str]] = []

    def start(self, name: str, program: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, MARK: self.mark},
        )
        self.started.append(child)
        # exec reports success to Popen a moment before the kernel shows the new environment.
        wait_for("the program's environment is there", psutil.Process(child.pid).environ)
        self.file.add(name, child.pid)
        return child

    def record(self, name: str) -> ProcessRecord:
        return next(record for record in self.file.load() if record.name == name)

    def end(self) -> None:
        for child in self.started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.communicate()


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    made = Programs(tmp_path)
    yield made
    made.end()


def line(child: subprocess.Popen[str]) -> str:
    assert child.stdout
    return child.stdout.readline().strip()


def ended(pid: int) -> bool:
    """Returns whether a process that is not a child of this process ends within ten seconds. Its new parent may need time to reap it."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
    return False


def test_a_process_is_known_by_its_start_time_too(programs: Programs) -> None:
    child = programs.start("one", SLEEP)
    record = programs.record("one")
    assert processes.find(record) is not None
    reused = dataclasses.replace(record, started=record.started - 100)
    assert processes.find(reused) is None
    assert processes.stop(reused, [StopStep(processes.terminate, 1.0)], programs.mark) == []
    assert child.poll() is None, "a process that only has the same id must live on"


@pytest.mark.found
def test_a_process_is_known_after_the_clock_was_set(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect 33: `status` and `down` did not find running processes after a clock was corrected by more than a second."""
    programs.start("one", SLEEP)
    record = programs.record("one")
    begun = psutil.boot_time()
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: begun + 11.0)
    assert psutil.Process(record.pid).create_time() > record.started + begun + 10
    assert processes.find(record) is not None


def test_a_process_of_an_earlier_boot_is_not_known(programs: Programs) -> None:
    programs.start("one", SLEEP)
    assert processes.find(dataclasses.replace(programs.record("one"), boot="an earlier one")) is None


def test_sigterm_is_enough_for_a_willing_process(programs: Programs) -> None:
    child = programs.start("one", SLEEP)
    assert processes.stop(programs.record("one"), [StopStep(processes.terminate, 20.0)], programs.mark) == []
    assert child.wait(5) in {-signal.SIGTERM, 0}  # 0: psutil was quicker to reap our own child


def test_a_stubborn_process_is_killed(programs: Programs) -> None:
    child = programs.start("one", STUBBORN)
    assert line(child) == "ready"
    record = programs.record("one")
    assert processes.stop(record, [StopStep(processes.terminate, 0.3)], programs.mark) == []
    assert processes.find(record) is None


def test_children_end_with_their_parent(programs: Programs) -> None:
    grandchild = int(line(programs.start("one", PARENT)))
    processes.stop(programs.record("one"), [StopStep(processes.terminate, 5.0)], programs.mark)
    assert ended(grandchild)


def test_what_a_killed_parent_left_behind_is_found_by_its_mark(programs: Programs) -> None:
    parent = programs.start("one", PARENT)
    grandchild = int(line(parent))
    record = programs.record("one")
    parent.kill()
    parent.wait(5)
    assert [process.pid for process in processes.members(record, programs.mark)] == [grandchild]
    assert processes.members(record, "/somewhere/else/processes.json") == []
    processes.stop(record, [StopStep(processes.terminate, 5.0)], programs.mark)
    assert ended(grandchild)


def test_a_sweep_ends_all_processes_with_the_mark_and_no_others(programs: Programs) -> None:
    ours, again = programs.start("one", SLEEP), programs.start("one", SLEEP)
    unrelated = subprocess.Popen([sys.executable, "-c", SLEEP], start_new_session=True, text=True)
    programs.started.append(unrelated)
    assert processes.sweep(programs.mark) == []
    assert ours.wait(5) == again.wait(5) == -signal.SIGKILL
    assert unrelated.poll() is None


def test_steps_are_taken_in_order_and_no_further_than_needed(programs: Programs) -> None:
    programs.start("one", SLEEP)
    taken: list[str] = []

    def request(record: ProcessRecord) -> None:
        taken.append("request")

    def end(record: ProcessRecord) -> None:
        taken.append("end")
        processes.terminate(record)

    def never(record: ProcessRecord) -> None:
        taken.append("never")

    steps = [StopStep(request, 0.2), StopStep(end, 20.0), StopStep(never, 1.0)]
    assert processes.stop(programs.record("one"), steps, programs.mark) == []
    assert taken == ["request", "end"]


def test_records_survive_in_the_file_and_a_broken_file_is_empty(programs: Programs) -> None:
    programs.start("one", SLEEP)
    programs.start("two", SLEEP)
    again = ProcessFile(programs.file.path)
    assert set(again.running()) == {"one", "two"}
    again.remove(["one"])
    assert [record.name for record in programs.file.load()] == ["two"]
    programs.file.path.write_text("[{")
    assert programs.file.load() == []


def test_the_owner_of_a_port_is_named(tmp_path: Path) -> None:
    program = (
        "import socket, time; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen();"
        "print(s.getsockname()[1], flush=True); time.sleep(600)"
    )
    programs = Programs(tmp_path)
    child = programs.start("one", program)
    try:
        assert f"(pid {child.pid})" in processes.port_owner(int(line(child)))
        assert processes.memory_mb(programs.record("one")) > 1
    finally:
        programs.end()
    assert not psutil.pid_exists(child.pid)
