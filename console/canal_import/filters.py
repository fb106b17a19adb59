"""Checks whether a destination captures the tables to which Canal's clients subscribed. `rules` calls this module.

In Canal, the filter of a subscription replaces filter.regex. In Sluice, a subscription's filter only selects among the tables that the
destination captures.
"""

from __future__ import annotations

import re

from sluice.cdc_engine.sink.table_filter import TableFilter, split_patterns

EVERYTHING = {r".*\..*", ".*", "..*", ".*..*", r".+\..+"}
TABLE = re.compile(r"[\w$]+\\?\.[\w$]+")


def not_captured(client_filter: str, include: str, exclude: str) -> list[str]:
    """Returns those patterns of a client that may match a table which the destination does not capture. Patterns are compared as text. So a
    pattern that is equivalent to a pattern in `include`, but written differently, is returned too.
    """
    captured = TableFilter(include, exclude)
    known = {pattern.lower() for pattern in split_patterns(include)}
    return [each for each in split_patterns(client_filter) if not _is_in(each, captured, known)]


def _is_in(pattern: str, captured: TableFilter, known: set[str]) -> bool:
    if TABLE.fullmatch(pattern):
        return captured.keeps(*pattern.replace("\\.", ".").split("."))
    return pattern.lower() in known or bool(known & EVERYTHING)
