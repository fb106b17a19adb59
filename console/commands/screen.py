"""Makes the console for tables and sentences. Used by `main` and the benchmarks."""

from __future__ import annotations

import sys

from rich.console import Console

PIPE_COLUMNS = 400  # A program that reads from the pipe cannot use truncated cells.


def standard_output() -> Console:
    """Returns a console as wide as its terminal. Without a terminal it is so wide that no cell is truncated."""
    return Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS)
