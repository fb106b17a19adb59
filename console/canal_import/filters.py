"""Checks whether a destination captures the tables to which Canal's clients subscribed. The functions are pure; `rules` calls them.

In Canal, a subscription's filter replaces filter.regex. In Sluice, it only narrows what the destination captures.
"""

from __future__ import annotations

import re

from sluice.cdc_engine.sink.table_filter import TableFilter, split_patterns

EVERYTHING = {r".*\..*", ".*", "..*", ".*..*", r".+\..+"}
TABLE = re.compile(r"[\w$]+\\?\.[\w$]+")


def not_captured(client_filter: str, include: str, exclude: str) -> list[str]:
    """Returns the patterns of a client that may match a table which is not captured. It compares patterns as text, so it also returns a
    pattern that is equivalent to one in `include` but written differently.
    """
    captured = TableFilter(include, exclude)
    known = {pattern.lower() for pattern in split_patterns(include)}
    return [each for each in split_patterns(client_filter) if not _is_in(each, captured, known)]


def _is_in(pattern: str, captured: TableFilter, known: set[str]) -> bool:
    if TABLE.fullmatch(pattern):
        return captured.keeps(*pattern.replace("\\.", ".").split("."))
    return pattern.lower() in known or bool(known & EVERYTHING)
