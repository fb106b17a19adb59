"""Creates the console that prints to standard output. The commands and the benchmarks use it."""

from __future__ import annotations

import sys
from io import TextIOWrapper
from json import dumps, loads
from typing import Any

from rich.console import Console, Group
from rich.table import Table

# The width, in characters, of output to a pipe. This width is so large that no cell of a table is truncated, because a program that reads
# the pipe needs whole cells.
PIPE_COLUMNS = 400
# With these options, Rich prints text unchanged. Otherwise it would remove [brackets] and replace :words: in the rows, names and messages.
AS_IT_IS: dict[str, Any] = {"markup": False, "emoji": False}


class Screen(Console):
    """A console that cuts nothing off in tables, and that prints JSON quickly to a pipe. Even for a pipe, Rich's own method looks for parts
    to highlight, which takes seconds for thousands of tables.
    """

    def print(self, *objects: Any, **options: Any) -> None:
        """Prints objects as Rich does. In a table that is wider than the terminal, long names and paths continue on the next line."""
        for each in objects:
            for table in each.renderables if isinstance(each, Group) else [each]:
                for column in table.columns if isinstance(table, Table) else ():
                    column.overflow = "fold"
        super().print(*objects, **options)

    def print_json(self, json: str | None = None, **options: Any) -> None:
        """Prints JSON with an indentation of two spaces. On a terminal, the JSON has colors."""
        if self.is_terminal or json is None:
            super().print_json(json, **options)
        else:
            self.file.write(dumps(loads(json), indent=2, ensure_ascii=False) + "\n")


def standard_output() -> Console:
    """Returns a console as wide as the terminal. If the output is not a terminal, the console is so wide that no cell is truncated."""
    return Screen(width=None if sys.stdout.isatty() else PIPE_COLUMNS, **AS_IT_IS)


def print_all_characters() -> None:
    """Lets a command print any character in a locale that is not UTF-8, for example ISO-8859-1. A program gets UTF-8, as JSON requires. A
    terminal gets an escape such as \\u20ac for a character that it does not have.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding=None if stream.isatty() else "utf-8", errors="backslashreplace")
