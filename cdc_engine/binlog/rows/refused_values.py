"""What a table has chosen for values that cannot be right, and the values that were taken out of their rows under it. Used by `rows`.

Finding them costs nothing where there is none: only a column that refused a value is searched, by halves, for all that it refuses.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Mapping
from typing import Any

from cdc_engine.binlog.column_types import ValueRefusedError, Values
from cdc_engine.binlog.column_types.entry import AnyArray
from cdc_engine.binlog.row_rules.rules import NO_RULES, RowRules
from cdc_engine.binlog.rows.shard_column import ShardColumn
from cdc_engine.contracts import Column

Finish = Callable[[Values], AnyArray]
STOP, QUARANTINE = "stop", "quarantine"
REFUSED_VALUES_MAX = 100_000  # of one table in a batch: more is no accident but a wrong charset


@dataclasses.dataclass(frozen=True, kw_only=True)
class ValuePolicy:
    """`zero_dates`: see `column_types.entry.type_of`. `undecodable`: "stop" the table, or put the value into "quarantine" and NULL into its
    place. `charsets`: by column name the charset that its bytes really have, where the source's declaration is wrong. `rules`: which rows
    are captured, and which columns are masked. `shard`: the column that tells rows of several tables apart which become one in the lake.
    """

    zero_dates: str = "null"
    undecodable: str = STOP
    charsets: Mapping[str, str] = dataclasses.field(default_factory=dict)
    rules: RowRules = NO_RULES
    shard: ShardColumn | None = None

    def corrected(self, column: Column) -> Column:
        """The column with the charset that this table says it has."""
        charset = self.charsets.get(column.name)
        return dataclasses.replace(column, charset=charset) if charset else column


DEFAULT_POLICY = ValuePolicy()


@dataclasses.dataclass(frozen=True, kw_only=True)
class RefusedValue:
    """A value that was taken out of its row. `key`: the row's key columns with their decoded values, of a table without a key all columns.

    `file` and `offset`: of the row event; `order_key`: of its transaction; `image`: tells the images of a transaction
    apart, ascending. `column`: as the decoder had it.
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
    """(row, bytes, reason) of every value that `finish` refuses, ascending."""
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
