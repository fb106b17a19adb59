"""Tests the process of engines: it does not import pandas, although pandas is installed and pyarrow looks for it, and it has few arenas,
although it has many threads.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

REHEARSE = """
import sys
from pathlib import Path
from sluice.cdc_engine.instance.small_process import keep_small
keep_small()
from sluice.cdc_engine.instance.rehearsal import rehearse
rows = rehearse(Path(sys.argv[1]))
print(rows > 0, "pandas" in sys.modules)
"""
COUNT_ARENAS = """
import ctypes, sys, threading
from sluice.cdc_engine.instance.small_process import limit_arenas
if sys.argv[1] == "limited":
    limit_arenas()
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
libc.malloc.restype = ctypes.c_void_p
all_there = threading.Barrier(12)

def allocate():
    all_there.wait()
    libc.malloc(2000)
    all_there.wait()

threads = [threading.Thread(target=allocate) for _ in range(12)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
file = ctypes.c_void_p(libc.fopen(sys.argv[2].encode(), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""


def test_an_engine_stages_every_kind_of_column_without_pandas(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", REHEARSE, str(tmp_path)], capture_output=True, text=True, check=True, timeout=250
    )
    assert ran.stdout.split() == ["True", "False"]


def test_threads_share_two_arenas_where_the_operator_did_not_say_otherwise(tmp_path: Path) -> None:
    assert _arenas(tmp_path, "as it is") > 2
    assert _arenas(tmp_path, "limited") == 2
    assert _arenas(tmp_path, "limited", MALLOC_ARENA_MAX="5") == 5


def _arenas(folder: Path, how: str, **environment: str) -> int:
    file = folder / "arenas"
    inherited = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}
    subprocess.run([sys.executable, "-c", COUNT_ARENAS, how, str(file)], check=True, env={**inherited, **environment})
    return file.read_text().count("<heap nr=")
