"""Tests the demo as a person uses it: Ctrl-C leaves nothing running, and the next start continues, also if parts of the demo are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from sluice.console.stack.processes import MARK, ProcessFile
from sluice.console.stack.stack import CODE_SERVER
from sluice.console.toolchain.ports import free_port
from tests.style.sources import ROOT as PROJECT_ROOT

pytestmark = [pytest.mark.servers, pytest.mark.spark]

START_SECONDS_MAX = 400
ONCE_SECONDS_MAX = 500


class DemoProcess:
    """Runs `sluice demo` in a process of its own, with its output in a file."""

    def __init__(self, folder: Path, port_base: int) -> None:
        self.folder, self.output = folder, folder.with_suffix(".out")
        self.records = ProcessFile(folder / "data" / "processes.json")
        self._port_base = port_base
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str) -> None:
        # A program that a shell starts in the background ignores SIGINT, and so do its child processes. These tests may run in the
        # background.
        heard = ["env", "--default-signal=INT"]
        command = [*heard, sys.executable, "-m", "sluice.console.main", "demo", "--dir", str(self.folder)]
        environment = {**os.environ, "PYTHONPATH": str(PROJECT_ROOT)}
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                [*command, "--port-base", str(self._port_base), "--visits", "20000", *arguments],
                stdout=output,
                stderr=output,
                env=environment,
            )

    def end(self, number: signal.Signals | None, seconds: float) -> int:
        """Sends the signal `number` to the demo if it is given, and returns the exit code of the demo."""
        assert self._process
        if number is not None:
            self._process.send_signal(number)
        return self._process.wait(seconds)

    def wait_for(self, condition: Callable[[], bool], seconds: float) -> None:
        assert self._process
        end = time.monotonic() + seconds
        while not condition():
            assert self._process.poll() is None, self.words()
            assert time.monotonic() < end, self.words()
            time.sleep(0.2)

    def words(self) -> str:
        return self.output.read_text()[-4000:]

    def left(self) -> list[str]:
        """Returns the command lines of processes that use this demo's folder."""
        found = []
        for process in psutil.process_iter(["pid", "cmdline"]):
            line = " ".join(process.info["cmdline"] or [])
            marked = str(self.folder) in line
            if not marked and process.pid != os.getpid():
                try:
                    marked = process.environ().get(MARK, "").startswith(str(self.folder))
                except psutil.Error:
                    marked = False
            if marked and process.pid != os.getpid():
                found.append(line)
        return found

    def stop_hard(self) -> None:
        if self._process and self._process.poll() is None:
            self._process.kill()
            self._process.wait()


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[DemoProcess]:
    made = DemoProcess(tmp_path / "demo", free_port(4))
    yield made
    made.stop_hard()


def run_workers(demo: DemoProcess) -> list[psutil.Process]:
    """Returns the processes that are in the middle of a run. A run continues if the code server that started it has ended."""
    lock = demo.folder / "data" / "engine" / "shop" / "run.lock"
    parts = {record.pid for record in demo.records.running().values()}
    return [each for each in psutil.process_iter() if each.pid not in parts and _holds(each, lock)]


def _holds(process: psutil.Process, file: Path) -> bool:
    try:
        return any(opened.path == str(file) for opened in process.open_files())
    except psutil.Error:
        return False


@pytest.mark.timeout(600)
def test_the_demo_ends_on_ctrl_c_and_resumes_to_equal_tables_though_engine_and_run_are_killed(
    demo: DemoProcess, tmp_path: Path
) -> None:
    demo.start()
    demo.wait_for(lambda: "rows in Delta" in demo.words(), START_SECONDS_MAX)
    assert set(demo.records.running()) == {"mysql", "spark", "code server", "webserver", "daemon"}
    assert demo.end(signal.SIGINT, 180) == 0, demo.words()
    assert demo.left() == []

    summary_file = tmp_path / "summary.json"
    demo.start("--once", "--seconds", "12", "--json", str(summary_file))
    demo.wait_for(lambda: "transactions/s" in demo.words(), START_SECONDS_MAX)
    killed = demo.records.running()[CODE_SERVER]
    os.kill(killed.pid, signal.SIGKILL)
    demo.wait_for(lambda: demo.records.running().get(CODE_SERVER, killed).pid != killed.pid, START_SECONDS_MAX)
    demo.wait_for(lambda: bool(run_workers(demo)), START_SECONDS_MAX)
    for worker in run_workers(demo):
        worker.kill()
    assert demo.end(None, ONCE_SECONDS_MAX) == 0, demo.words()
    assert demo.left() == []

    summary = json.loads(summary_file.read_text())
    assert summary["equal"]
    assert len(summary["tables"]) == 14
    assert all(table["equal"] and table["rows"] > 0 for table in summary["tables"].values()), summary
    assert summary["batches"] >= 1
    assert summary["runs"] >= 2, "another took the place of the killed one"
    assert 0 < summary["freshness_p50_s"] <= summary["freshness_p95_s"]
