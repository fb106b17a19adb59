"""Tests that the lock of the cache ends with the process that holds it. The lock file of a dead process does not block."""

import subprocess
import sys
from pathlib import Path

from sluice.console.toolchain.cache import Cache, locked

HOLDER = """
import sys, time
from pathlib import Path
from sluice.console.toolchain.cache import Cache, locked
with locked(Cache(Path(sys.argv[1]))):
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""


def _holder(root: Path, seconds: float) -> "subprocess.Popen[str]":
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(root), str(seconds)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def test_lock_file_of_a_killed_start_does_not_block(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    with _holder(tmp_path, 600) as holder:
        holder.kill()
    assert cache.lock_file.exists()
    said: list[str] = []
    with locked(cache, said.append):
        pass
    assert said == []


def test_lock_of_a_living_start_is_waited_for_and_said(tmp_path: Path) -> None:
    said: list[str] = []
    with _holder(tmp_path, 1) as holder, locked(Cache(tmp_path), said.append):
        assert holder.wait(5) == 0
    assert len(said) == 1
    assert "waiting until that process has finished" in said[0]
