"""pytest plugin that names a test as soon as it fails, and names tests that run for minutes. An interrupted run has thus shown what it
did.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping

import pytest

LONG_SECONDS = 240.0
LOOK_SECONDS = 60.0
FREE_BYTES_MIN = 3 << 30  # A MySQL whose disk is full waits forever, and so do the tests that use it.


def long_running(started: Mapping[str, float], now: float, seconds: float = LONG_SECONDS) -> list[str]:
    """Returns a line for each test that has run for at least `seconds`, the longest first. `started` has the start time of each test."""
    late = sorted((begin, name) for name, begin in started.items() if now - begin >= seconds)
    return [f"running for {now - begin:.0f} s: {name}" for begin, name in late]


def low_disk(folder: str, free_bytes: int) -> list[str]:
    """Returns a line if a folder's disk has so little space that servers of the tests may stop working."""
    return [f"{free_bytes / 1e9:.1f} GB are free in {folder}"] if free_bytes < FREE_BYTES_MIN else []


class Progress:
    """Follows the tests of all workers in the process that distributes them."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._started: dict[str, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)

    def pytest_sessionstart(self) -> None:
        self._thread.start()

    def pytest_sessionfinish(self) -> None:
        self._ended.set()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._started[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._started.pop(nodeid, None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            last = (report.longreprtext.strip().splitlines() or [""])[-1]
            self._write(f"\n{report.when} failed after {report.duration:.0f} s: {report.nodeid}: {last[:300]}")

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            folder = tempfile.gettempdir()
            late = long_running(dict(self._started), time.monotonic())
            for line in [*late, *low_disk(folder, shutil.disk_usage(folder).free)]:
                self._write(f"\n{line}")


@pytest.hookimpl(trylast=True)  # The reporter exists by then.
def pytest_configure(config: pytest.Config) -> None:
    screen = config.pluginmanager.get_plugin("terminalreporter")
    if screen is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Progress(screen.write_line), "sluice-progress")
