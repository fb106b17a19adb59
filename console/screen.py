"""Where tables and sentences are printed; made by `main` and by the benchmarks."""

from __future__ import annotations

import sys

from rich.console import Console

PIPE_COLUMNS = 400  # a cell that is cut is of no use to what reads the pipe


def standard_output() -> Console:
    """As wide as its terminal; where there is none, no cell is cut."""
    return Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS)
