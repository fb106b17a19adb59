"""Tests that, after set-up, an engine on a live server and a snapshot of it compile nothing. The rehearsal must reach every kernel that
rows need.

Set-up has compiled the kernels of this checkout with the same rehearsal. Other tests compile more kernels, so existing files prove nothing.
The test therefore reads from numba which files of code each process loads or saves (NUMBA_DEBUG_CACHE).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.kernels import PROGRAM
from tests.instance import engine_process
from tests.instance.fix_destination import Captured
from tests.instance.record_rehearsal import run_all, statements

pytestmark = [pytest.mark.servers, pytest.mark.spark]

COMPILE_SECONDS_MAX = 500.0
REQUESTED = {"NUMBA_DEBUG_CACHE": "1"}
CODE_USED = re.compile(r"\[cache\] data (?:loaded from|saved to) '([^']+)'")


def used(output: str) -> set[str]:
    """Returns the files of code that a process loaded or had to compile: one per kernel and set of argument types."""
    return set(CODE_USED.findall(output))


def run_module(*words: str) -> tuple[int, set[str]]:
    """Runs a module as a program. Returns the number in the last line of the output, and the files of code that the program used."""
    done = subprocess.run(
        [sys.executable, "-m", *words],
        env={**os.environ, **REQUESTED, "PYTHONPATH": str(engine_process.ROOT)},
        check=True,
        capture_output=True,
        text=True,
        timeout=COMPILE_SECONDS_MAX,
    )
    return int(done.stdout.splitlines()[-1]), used(done.stdout)


@pytest.mark.timeout(600)
def test_a_fresh_engine_compiles_nothing_after_set_up(mysql80: DatabaseServer, tmp_path: Path) -> None:
    staged, rehearsed = run_module(PROGRAM, str(tmp_path / "rehearsal"))
    assert len(rehearsed) > 30
    captured = Captured(tmp_path, mysql80)
    rows = staged // 2  # The process stages the same rows twice.
    engine = engine_process.start(captured.conf, rows, REQUESTED)
    captured.wait_until_running()
    run_all(mysql80, [f"DROP DATABASE {captured.database}", *statements(captured.database)])
    output = engine_process.output(engine, 60)
    assert engine_process.answer(output)["rows"] == rows
    assert used(output)
    assert used(output) <= rehearsed
    read, reading = run_module(
        "tests.snapshot.read_all", str(mysql80.port), captured.database, str(tmp_path / "chunks")
    )
    assert read > 10
    assert reading
    assert reading <= rehearsed
