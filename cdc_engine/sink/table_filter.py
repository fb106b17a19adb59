"""Determines which tables are captured, by comma-separated patterns for "database.table", as in Canal.

`event_sink` uses the filter for every table in the stream. Other code uses it to list the captured tables.
"""

from __future__ import annotations

import re

from sluice.cdc_engine.errors import ConfigurationError

OPENING, CLOSING = "{[(", "}])"


def split_patterns(text: str) -> list[str]:
    """Returns the patterns in a comma-separated text, in order. A comma within `{}`, `[]` or `()`, or after a backslash, is part of a
    pattern. Blanks are part of a pattern too, as in Canal. Leaves out empty patterns, which would match no table.
    """
    patterns, current, depth, escaped = [], "", 0, False
    for character in text:
        if character == "," and depth == 0 and not escaped:
            patterns.append(current)
            current = ""
            continue
        if not escaped:
            depth += (character in OPENING) - (character in CLOSING)
            depth = max(depth, 0)
        escaped = character == "\\" and not escaped
        current += character
    return [pattern for pattern in (*patterns, current) if pattern]


def compile_patterns(text: str) -> tuple[re.Pattern[str], ...]:
    """Returns a regular expression for each pattern in `text`. The caller must compare each with the whole name (`fullmatch`). Letter case
    does not matter, and a dot also matches a newline. Raises ConfigurationError if a pattern is not a regular expression.
    """
    # Does not join the patterns to one expression, because flags, group names and backreferences of a pattern apply to this pattern only.
    return tuple(map(_compiled, split_patterns(text)))


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern, re.IGNORECASE | re.DOTALL)
    except re.error as error:
        raise ConfigurationError(
            f"the table pattern {pattern!r} is not a regular expression ({error}): correct the pattern in "
            "include or exclude"
        ) from error


class TableFilter:
    r"""Keeps the tables that `include` matches and `exclude` does not match. An empty `include` matches every table, and an empty `exclude`
    matches no table.

    A dot without a backslash matches any character: `test..*` also matches tables of the database `test1`, and `test\..*` does not.
    """

    def __init__(self, include: str = "", exclude: str = "") -> None:
        self.include, self.exclude = include, exclude
        self._include = compile_patterns(include)
        self._exclude = compile_patterns(exclude)

    def keeps(self, database: str, table: str) -> bool:
        """Returns whether a table is captured. Returns True if both names are empty, because statements without a table are always kept."""
        name = f"{database}.{table}".lower() if database or table else ""
        return _matches(self._include, name, if_empty=True) and not _matches(self._exclude, name, if_empty=False)


def _matches(patterns: tuple[re.Pattern[str], ...], name: str, *, if_empty: bool) -> bool:
    if not patterns or not name:
        return if_empty
    return any(pattern.fullmatch(name) for pattern in patterns)
