"""After set-up an engine on a live server, and a snapshot of it, compile nothing: the rehearsal reaches every kernel that rows need."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from console.toolchain.database.server import DatabaseServer
from console.toolchain.kernels import PROGRAM
from tests.instance import engine_process
from tests.instance.fix_destination import Captured
from tests.instance.record_rehearsal import run_all, statements

COMPILE_SECONDS_MAX = 800.0


def compiled(cache: Path) -> set[str]:
    """numba's files of code, one a kernel and set of argument types."""
    return {str(file.relative_to(cache)) for file in cache.rglob("*.nbc")}


def run_module(cache: Path, *words: str) -> int:
    """What a module's program answers, with numba's code in `cache`."""
    done = subprocess.run(
        [sys.executable, "-m", *words],
        env={**os.environ, "NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": str(engine_process.ROOT)},
        check=True,
        capture_output=True,
        text=True,
        timeout=COMPILE_SECONDS_MAX,
    )
    return int(done.stdout)


@pytest.mark.timeout(COMPILE_SECONDS_MAX + 100)
def test_a_fresh_engine_compiles_nothing_after_set_up(mysql80: DatabaseServer, tmp_path: Path) -> None:
    cache = tmp_path / "numba"
    staged = run_module(cache, PROGRAM, str(tmp_path / "rehearsal"))
    after_set_up = compiled(cache)
    assert len(after_set_up) > 30
    captured = Captured(tmp_path, mysql80)
    rows = staged // 2  # it stages the same rows twice
    engine = engine_process.start(captured.conf, rows, {"NUMBA_CACHE_DIR": str(cache)})
    captured.wait_until_running()
    run_all(mysql80, [f"DROP DATABASE {captured.database}", *statements(captured.database)])
    assert engine_process.finished(engine, 60)["rows"] == rows
    assert compiled(cache) == after_set_up
    read = run_module(cache, "tests.snapshot.read_all", str(mysql80.port), captured.database, str(tmp_path / "chunks"))
    assert read > 10
    assert compiled(cache) == after_set_up
