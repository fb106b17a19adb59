"""Decides which tables are captured: comma-separated patterns over "database.table", as in Canal (reference canal.md §3.1).

Used by `event_sink` for every table in the stream, and by code that needs the captured tables beforehand.
"""

from __future__ import annotations

import re

from sluice.cdc_engine.errors import ConfigurationError

OPENING, CLOSING = "{[(", "}])"


def split_patterns(text: str) -> list[str]:
    r"""Returns the patterns of a comma-separated text, in order. A comma within `{}`, `[]`, `()` or after a backslash is no separator.

    Nothing is trimmed: a blank is part of its pattern, as in Canal. Empty patterns match no table and are left out.
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


def compile_patterns(text: str) -> re.Pattern[str] | None:
    """Returns one expression that matches a whole lower-cased name, or None if there is no pattern.

    The longest pattern is first, each is anchored at both ends, letter case is ignored, and the dot matches a newline too. Raises
    ConfigurationError with the pattern that is not a regular expression.
    """
    patterns = sorted(split_patterns(text), key=len, reverse=True)
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigurationError(
                f"the table pattern {pattern!r} is not a regular expression ({error}): correct it in include or exclude"
            ) from error
    if not patterns:
        return None
    return re.compile("|".join(f"^(?:{pattern})$" for pattern in patterns), re.IGNORECASE | re.DOTALL)


class TableFilter:
    """Keeps a table that `include` matches and `exclude` does not. An empty `include` matches all, an empty `exclude` nothing.

    An unescaped dot matches any character: `test..*` also keeps a table of the database `test1`; write `test\\..*`.
    """

    def __init__(self, include: str = "", exclude: str = "") -> None:
        self.include, self.exclude = include, exclude
        self._include = compile_patterns(include)
        self._exclude = compile_patterns(exclude)

    def keeps(self, database: str, table: str) -> bool:
        """Returns whether the row events of this table are captured. A statement without a table (empty names) is always captured."""
        name = f"{database}.{table}".lower() if database or table else ""
        return _matches(self._include, name, if_empty=True) and not _matches(self._exclude, name, if_empty=False)


def _matches(pattern: re.Pattern[str] | None, name: str, *, if_empty: bool) -> bool:
    if pattern is None or not name:
        return if_empty
    return pattern.fullmatch(name) is not None
