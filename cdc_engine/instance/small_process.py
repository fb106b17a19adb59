"""Limits the memory of the engine process: without pandas, and with few malloc arenas. The code server and `sluice engine` call it before
their engines start.

pyarrow imports pandas with its first conversions if it is installed, and Spark's client installs it. An engine does not need pandas,
which takes 57 MB and 0.4 s of each start. Runs merge in processes of their own, which have it.

glibc gives each thread an arena to allocate from, up to eight per core, and each keeps what was freed in it: with 50 threads 110 of 350
MB. Nearly all allocations of the threads are made while they hold Python's lock, so they do not wait for each other's arena."""

from __future__ import annotations

import ctypes
import os
import sys

ARENAS = 2
M_ARENA_MAX = -8  # mallopt(3)
ARENAS_VARIABLE = "MALLOC_ARENA_MAX"


class _WithoutPandas:
    """A module finder that reports pandas as not installed."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("Sluice does not load pandas in an engine process", name=name)


def keep_small() -> None:
    """Applies both limits. Call it once, before threads start."""
    leave_pandas_out()
    limit_arenas()


def leave_pandas_out() -> None:
    """Makes every later import of pandas in this process fail as if it were not installed. Has no effect if it is loaded already."""
    if not any(isinstance(finder, _WithoutPandas) for finder in sys.meta_path):
        sys.meta_path.insert(0, _WithoutPandas())


def limit_arenas() -> None:
    """Limits the number of malloc arenas, unless the operator set it (MALLOC_ARENA_MAX) or malloc is not glibc's."""
    if ARENAS_VARIABLE not in os.environ:
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(M_ARENA_MAX, ARENAS)
