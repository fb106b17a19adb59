"""Keeps the process of engines small: without pandas, and with few arenas of malloc. The code server and `sluice engine` call it before
their engines start.

pyarrow imports pandas with its first conversions wherever it is installed, and Spark's client brings it. An engine has no use for it, and
would carry 57 MB and spend 0.4 s of each start on it. Runs merge in processes of their own, which have it.

glibc gives each thread an arena to allocate from, up to eight a core, and each keeps what was freed in it: with 50 threads 110 of 350 MB.
Nearly all that threads here allocate they allocate with Python's lock, so they do not wait for each other's arena.
"""

from __future__ import annotations

import ctypes
import os
import sys

ARENAS = 2
M_ARENA_MAX = -8  # mallopt(3)
ASKED_FOR = "MALLOC_ARENA_MAX"


class _WithoutPandas:
    """A finder that knows one thing: there is no pandas."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is left out of an engine's process", name=name)


def keep_small() -> None:
    """Once, before threads begin."""
    leave_pandas_out()
    limit_arenas()


def leave_pandas_out() -> None:
    """From now on whoever asks for pandas in this process is told that it is not installed. Without effect where it is loaded already."""
    if not any(isinstance(finder, _WithoutPandas) for finder in sys.meta_path):
        sys.meta_path.insert(0, _WithoutPandas())


def limit_arenas() -> None:
    """Leaves it to glibc where the operator said how many (MALLOC_ARENA_MAX), and where malloc is not glibc's."""
    if ASKED_FOR not in os.environ:
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(M_ARENA_MAX, ARENAS)
