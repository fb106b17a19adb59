"""Creates the console that prints to standard output. The commands and the benchmarks use it."""

from __future__ import annotations

import sys

from rich.console import Console

# The width, in characters, of output to a pipe. This width is so large that no cell of a table is truncated, because a program that reads
# the pipe needs whole cells.
PIPE_COLUMNS = 400


def standard_output() -> Console:
    """Returns a console as wide as the terminal. If the output is not a terminal, the console is so wide that no cell is truncated."""
    return Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS)
