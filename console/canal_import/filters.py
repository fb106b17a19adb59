"""Checks whether a destination captures the tables to which Canal's clients have subscribed. `rules` calls this module.

In Canal, the filter of a subscription replaces the instance's filter.regex. In Sluice, the filter of a subscription only selects among the
tables that the destination captures.
"""

from __future__ import annotations

import re

from sluice.cdc_engine.sink.table_filter import TableFilter, split_patterns

EVERYTHING = {r".*\..*", ".*", "..*", ".*..*", r".+\..+"}
TABLE = re.compile(r"[\w$]+\\?\.[\w$]+")


def not_captured(client_filter: str, include: str, exclude: str) -> list[str]:
    """Returns the patterns in a client's filter that may match tables that the destination does not capture.

    If a pattern names one table, checks whether `include` and `exclude` capture this table. Any other pattern counts as captured
    if `include` has it as the same text, or has all tables. So the result also has patterns that mean the same as one in `include` but are
    spelled differently.
    """
    captured = TableFilter(include, exclude)
    known = {pattern.lower() for pattern in split_patterns(include)}
    return [each for each in split_patterns(client_filter) if not _is_in(each, captured, known)]


def _is_in(pattern: str, captured: TableFilter, known: set[str]) -> bool:
    if TABLE.fullmatch(pattern):
        return captured.keeps(*pattern.replace("\\.", ".").split("."))
    return pattern.lower() in known or bool(known & EVERYTHING)
