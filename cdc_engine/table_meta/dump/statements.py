"""Splits a dump of `mysqldump` or `mariadb-dump` into statements. Pure functions.

A DELIMITER line changes the delimiter, for example around the body of a trigger. The content of an executable comment is part of the
statement.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_SKIPPED = r"""
    '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" | `(?:[^`]|``)*`
  | --(?=[\x00-\x20]|\Z)[^\n]* | \#[^\n]* | /\*(?!!|M!).*?\*/
"""
_DELIMITER = re.compile(r"DELIMITER[ \t]+(\S+)[^\n]*(?:\n|\Z)", re.IGNORECASE)
_BLANKS = re.compile(r"(?:\s+|--(?=[\x00-\x20]|\Z)[^\n]*|\#[^\n]*|/\*(?!!|M!).*?\*/)*", re.DOTALL)
_DATABASE = re.compile(r"^-- Host: .*?[ \t]Database: (\S+)[ \t]*$", re.MULTILINE)
_USE = re.compile(r"USE\s+`((?:[^`]|``)+)`\s*\Z", re.IGNORECASE)


def database_of(dump: str) -> str:
    """Returns the database that the comment at the beginning of a dump names, or "" if the comment names no database or several
    databases.
    """
    found = _DATABASE.search(dump)
    return found[1] if found else ""


def used_database(statement: str) -> str | None:
    """Returns the database of a USE statement, or None for any other statement."""
    found = _USE.match(statement)
    return found[1].replace("``", "`") if found else None


def statements_of(dump: str) -> Iterator[str]:
    """Yields the statements of a dump, without delimiters and without the comments before each statement."""
    at, end = 0, ";"
    while True:
        at = _match_end(_BLANKS, dump, at)
        if found := _DELIMITER.match(dump, at):
            at, end = found.end(), found[1]
            continue
        if at >= len(dump):
            return
        begin = at
        pattern = re.compile(rf"{_SKIPPED} | (?P<end>{re.escape(end)})", re.VERBOSE | re.DOTALL)
        for part in pattern.finditer(dump, begin):
            if part["end"]:
                yield dump[begin : part.start()].strip()
                at = part.end()
                break
        else:
            yield dump[begin:].strip()
            return


def _match_end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at
