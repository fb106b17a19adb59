"""Evaluates the table filter of a client or broker. The filter has the syntax of the filters in conf/, but no pattern can take exponential
time. Used by `subscriptions`.

Python's regular expressions backtrack, so a client could send a short pattern that blocks the engine process, and with it all batches for
the lake. So this module uses RE2, through Arrow. RE2 has the same syntax, except that it refuses lookaround and backreferences.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.sink.table_filter import TableFilter, split_patterns

CHARACTERS_MAX = 4096


class ClientTables(TableFilter):
    """The tables that a client's filter selects. Raises ConfigurationError if the filter is too long, or not a regular expression."""

    def __init__(self, client_filter: str) -> None:
        if len(client_filter) > CHARACTERS_MAX:
            raise ConfigurationError(
                f"a filter of {len(client_filter)} characters is refused: the maximum is {CHARACTERS_MAX}; use a shorter filter"
            )
        super().__init__()
        self.include = client_filter
        self._alternatives = [f"(?is)^(?:{each})$" for each in split_patterns(client_filter)]
        self.keeps("database", "table")

    def keeps(self, database: str, table: str) -> bool:
        name = pa.array([f"{database}.{table}".lower()])
        if not (database or table) or not self._alternatives:
            return True
        return any(_matches(name, pattern) for pattern in self._alternatives)


def client_tables(client_filter: str) -> TableFilter:
    """Returns the tables that a client requests. An empty filter selects all tables. Raises ConfigurationError if the filter is too long,
    or not a regular expression.
    """
    return ClientTables(client_filter)


def _matches(name: pa.StringArray, pattern: str) -> bool:
    try:
        found: pa.BooleanArray = pc.match_substring_regex(name, pattern)
    except pa.ArrowInvalid as error:
        raise ConfigurationError(
            f"the filter of a client or broker has the pattern {pattern!r}, which is not a regular expression of RE2 ({error}): "
            "correct the pattern in the client, or `filter` of the broker in conf/"
        ) from error
    return bool(found[0].as_py())
