"""The console for tables and sentences; created by `main` and by the benchmarks."""

from __future__ import annotations

import sys

from rich.console import Console

PIPE_COLUMNS = 400  # a program that reads the pipe cannot use truncated cells


def standard_output() -> Console:
    """Returns a console as wide as its terminal; without a terminal it is wide enough that no cell is truncated."""
    return Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS)
