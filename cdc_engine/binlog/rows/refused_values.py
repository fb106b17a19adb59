"""Applies a table's policy for values that cannot be decoded, and keeps the values that it removes from their rows. Used by `rows`.

Finding them costs nothing if there are none: only a column that refused a value is searched, by bisection, for all
refused values."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Mapping
from typing import Any

from sluice.cdc_engine.binlog.column_types import ValueRefusedError, Values
from sluice.cdc_engine.binlog.column_types.entry import AnyArray
from sluice.cdc_engine.binlog.row_rules.rules import NO_RULES, RowRules
from sluice.cdc_engine.binlog.rows.shard_column import ShardColumn
from sluice.cdc_engine.contracts import Column

Finish = Callable[[Values], AnyArray]
STOP, QUARANTINE = "stop", "quarantine"
REFUSED_VALUES_MAX = 100_000  # More such values of one table in a batch indicate a wrong charset.


@dataclasses.dataclass(frozen=True, kw_only=True)
class ValuePolicy:
    """How values of a table are decoded. `zero_dates`: see `column_types.entry.type_of`. `undecodable`: "stop" the
    table, or move the value into "quarantine" and put NULL in its row. `charsets`: column name → the charset that its
    bytes really have, if the source declares another. `rules`: which rows are captured, and which columns are masked.
    `shard`: the column that distinguishes the shards of a common table.
    """

    zero_dates: str = "null"
    undecodable: str = STOP
    charsets: Mapping[str, str] = dataclasses.field(default_factory=dict)
    rules: RowRules = NO_RULES
    shard: ShardColumn | None = None

    def corrected(self, column: Column) -> Column:
        """Returns the column with the charset that this policy gives it."""
        charset = self.charsets.get(column.name)
        return dataclasses.replace(column, charset=charset) if charset else column


DEFAULT_POLICY = ValuePolicy()


@dataclasses.dataclass(frozen=True, kw_only=True)
class RefusedValue:
    """A value that was removed from its row. `key`: the row's key columns with their decoded values; all columns for a
    table without a key.

    `file` and `offset`: of the row event. `order_key`: of its transaction. `image`: ascending number of the image in
    the transaction. `column`: as the decoder had it.
    """

    column: Column
    raw: bytes
    reason: str
    file: str
    offset: int
    order_key: int
    image: int
    operation: int
    commit_time: dt.datetime
    key: Mapping[str, Any]


def refusals(values: Values, finish: Finish) -> list[tuple[int, bytes, str]]:
    """Returns (row, bytes, reason) of every value that `finish` refuses, ascending."""
    found: list[tuple[int, bytes, str]] = []
    waiting = [(0, values.count)]
    while waiting:
        first, last = waiting.pop()
        part = Values(values.buffer, values.starts[first:last], values.sizes[first:last])
        try:
            finish(part)
        except ValueRefusedError as error:
            if last - first == 1:
                found.append((first, values.value(first), error.reason))
            else:
                middle = (first + last) // 2
                waiting += [(middle, last), (first, middle)]
    return found
