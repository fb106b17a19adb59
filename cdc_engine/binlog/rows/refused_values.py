"""Defines the policy by which a table's values are decoded, and finds the values of a column that cannot be decoded.

A search begins only after the decoder of a column raised an error, so columns whose values can all be decoded cost nothing. The search
bisects the column.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sluice.cdc_engine.binlog.charsets.statement_text import LiteralUnknownError, as_bytes, raw_in
from sluice.cdc_engine.binlog.column_types import ValueRefusedError, Values
from sluice.cdc_engine.binlog.column_types.entry import AnyArray
from sluice.cdc_engine.binlog.column_types.transcoding import is_text
from sluice.cdc_engine.binlog.row_rules.rules import NO_RULES, RowRules
from sluice.cdc_engine.binlog.rows.shard_column import ShardColumn
from sluice.cdc_engine.contracts import Column

Finish = Callable[[Values], AnyArray]
STOP, QUARANTINE = "stop", "quarantine"
# The maximum number of undecodable values of a table in one batch. With more such values, the table stops, because the charset of a column
# is probably wrong.
REFUSED_VALUES_MAX = 100_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class ValuePolicy:
    """The settings by which a table's values are decoded.

    - `zero_dates`: the policy for invalid dates. "null" replaces them by NULL, "error" refuses them, and "text" turns the whole column into
      text.
    - `undecodable`: what happens if a value cannot be decoded. "stop" stops the table. "quarantine" stores the value in the quarantine and
      writes NULL to the row.
    - `charsets`: column name in lower case → real charset of the bytes, for columns for which the source declares a wrong charset.
    - `rules`: row filter, masks and transform.
    - `shard`: the column that distinguishes the shards of a lake table, or None.
    """

    zero_dates: str = "null"
    undecodable: str = STOP
    charsets: Mapping[str, str] = dataclasses.field(default_factory=dict)
    rules: RowRules = NO_RULES
    shard: ShardColumn | None = None

    def corrected(self, column: Column) -> Column:
        """Returns the column with the charset that `charsets` has for it, and with its labels and default in this charset. Returns the
        column unchanged if `charsets` does not have the column. A label whose bytes are not text in this charset stays unchanged; such a
        default becomes unknown.
        """
        charset = self.charsets.get(column.name.lower())
        if not charset:
            return column
        labels = tuple(self._label(column, label) for label in column.labels)
        try:
            default = tuple(None if each is None else self.corrected_text(column, each) for each in column.default)
        except ValueError:
            default = ()
        return dataclasses.replace(column, charset=charset, labels=labels, default=default)

    def corrected_text(self, column: Column, text: str) -> str:
        """Returns a label, or a value that has the form of `Column.default`, in the charset that `charsets` has for the column. Raises
        ValueError if the bytes of the text are not text in this charset.
        """
        charset, declared = self.charsets.get(column.name.lower(), ""), column.charset
        if not charset or not declared or (column.labels and "binary" in (charset, declared)):
            return text
        try:
            raw = as_bytes(text, declared) if is_text(declared) else bytes.fromhex(text)
            return raw_in(raw, charset) if is_text(charset) else raw.hex()
        except LiteralUnknownError as error:
            raise ValueError(str(error)) from error

    def _label(self, column: Column, label: str) -> str:
        try:
            return self.corrected_text(column, label)
        except ValueError:
            return label

    def corrects(self, columns: Iterable[str]) -> bool:
        """Returns whether `charsets` has any of the columns."""
        return any(column.lower() in self.charsets for column in columns)


DEFAULT_POLICY = ValuePolicy()


@dataclasses.dataclass(frozen=True, kw_only=True)
class RefusedValue:
    """A value that cannot be decoded and that the decoder replaced by NULL.

    `column`: the column, with the charset that the decoder used. `raw`: the bytes of the value. `key`: the row's key columns with their
    decoded values, or all columns for a table without a key. `file`, `offset`: where the row event is in the binlog. `order_key`: the order
    key of the event's transaction. `image`: the number of the row among all rows that the decoder has decoded.
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
    """Returns (row, bytes, reason) of every value that `finish` cannot decode, in ascending order of rows."""
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
