"""After set-up a fresh engine on a live server compiles nothing: the rehearsal reaches every kernel that rows of any type need."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from console.toolchain.database.server import DatabaseServer
from console.toolchain.kernels import PROGRAM
from tests.instance import engine_process
from tests.instance.fix_destination import Captured
from tests.instance.record_rehearsal import run_all, statements

COMPILE_SECONDS_MAX = 240.0


def compiled(cache: Path) -> set[str]:
    """numba's files of code, one a kernel and set of argument types."""
    return {str(file.relative_to(cache)) for file in cache.rglob("*.nbc")}


def test_a_fresh_engine_compiles_nothing_after_set_up(mysql80: DatabaseServer, tmp_path: Path) -> None:
    cache = tmp_path / "numba"
    environment = {"NUMBA_CACHE_DIR": str(cache)}
    done = subprocess.run(
        [sys.executable, "-m", PROGRAM, str(tmp_path / "rehearsal")],
        env={**os.environ, **environment, "PYTHONPATH": str(engine_process.ROOT)},
        check=True,
        capture_output=True,
        text=True,
        timeout=COMPILE_SECONDS_MAX,
    )
    after_set_up = compiled(cache)
    assert len(after_set_up) > 30
    captured = Captured(tmp_path, mysql80)
    rows = int(done.stdout) // 2  # it stages the same rows twice
    engine = engine_process.start(captured.conf, rows, environment)
    captured.wait_until_running()
    run_all(mysql80, [f"DROP DATABASE {captured.database}", *statements(captured.database)])
    assert engine_process.finished(engine, 60)["rows"] == rows
    assert compiled(cache) == after_set_up
