"""Limits the memory of the engine process: prevents the import of pandas, and limits the number of malloc arenas. The code server and
`sluice engine` call this module before their engines start.

If pandas is installed, pyarrow imports pandas when it first converts Python values to an array. Pandas is installed because Spark's client
requires it. An engine does not need pandas, which costs 57 MB of memory and 0.4 s at each start. Runs merge in other processes, which
import pandas.

glibc gives each thread a malloc arena, up to eight per core, and an arena keeps memory that was freed in it. In an engine process with 50
threads and 350 MB, a limit of two arenas saved 110 MB. A small number of arenas does not slow the threads down, because the threads make
nearly all allocations while they hold Python's lock.
"""

from __future__ import annotations

import ctypes
import os
import sys

ARENAS = 2
M_ARENA_MAX = -8  # The number by which mallopt(3) identifies the maximum number of arenas.
ARENAS_VARIABLE = "MALLOC_ARENA_MAX"


class _WithoutPandas:
    """A module finder that reports pandas as not installed."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("Sluice does not load pandas in an engine process", name=name)


def keep_small() -> None:
    """Prevents the import of pandas, and limits the number of malloc arenas. Call it once, before threads start."""
    leave_pandas_out()
    limit_arenas()


def leave_pandas_out() -> None:
    """Makes later imports of pandas in this process fail as if pandas were not installed. Has no effect if pandas is already loaded."""
    if not any(isinstance(finder, _WithoutPandas) for finder in sys.meta_path):
        sys.meta_path.insert(0, _WithoutPandas())


def limit_arenas() -> None:
    """Limits the number of malloc arenas. Does nothing if the operator set the number in MALLOC_ARENA_MAX, or if malloc is not glibc's."""
    if ARENAS_VARIABLE not in os.environ:
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(M_ARENA_MAX, ARENAS)
