"""Decodes rows of a SELECT into Arrow record batches, with the same types and values as row events. Called by
`cdc_engine.snapshot`.

`ResultDecoder` makes the column list of the SELECT, checks the server's descriptions of the result columns, and decodes the values that the
module `locate` finds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.cdc_engine.binlog.charsets.collations import charset_of_id, charset_of_name
from sluice.cdc_engine.binlog.column_types import TypeUnsupportedError, ValueRefusedError, Values
from sluice.cdc_engine.binlog.column_types.entry import AnyArray
from sluice.cdc_engine.binlog.result_rows.result_types import ResultType, result_type
from sluice.cdc_engine.binlog.row_rules.history_rows import HIDDEN
from sluice.cdc_engine.binlog.row_rules.rules import BoundRules
from sluice.cdc_engine.binlog.rows.refused_values import (
    DEFAULT_POLICY,
    QUARANTINE,
    REFUSED_VALUES_MAX,
    ValuePolicy,
    refusals,
)
from sluice.cdc_engine.contracts import Bytes, Column, Int8s, Int32s, Int64s, TableVersion
from sluice.cdc_engine.errors import TableStoppedError
from sluice.cdc_engine.states import TableState


@dataclasses.dataclass(frozen=True)
class SentColumn:
    """The server's description of a result column. `type_code`: the number of a MYSQL_TYPE_* constant. `collation`: a collation id."""

    type_code: int
    collation: int
    unsigned: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class RefusedCell:
    """A value of a SELECT result that cannot be decoded and was replaced by NULL. `key`: the row's key columns with their
    values, or all columns for a table without a key.
    """

    column: Column
    raw: bytes
    reason: str
    key: dict[str, Any]


class ResultDecoder:
    """Decodes SELECT results of one table version. `kept`: indices of the columns to decode; None means all. Raises TableStoppedError with
    the state TYPE_UNSUPPORTED if a column in `kept` cannot be decoded, and with SCHEMA_MISMATCH if a key column is not in `kept`.

    `columns`: the columns that the SELECT reads. `schema`: the Arrow schema of the decoded rows after the policy's rules are applied,
    including the shard column.
    """

    def __init__(self, version: TableVersion, kept: Int32s | None = None, policy: ValuePolicy = DEFAULT_POLICY) -> None:
        self.version, self.policy = version, policy
        indices = range(len(version.columns)) if kept is None else kept.tolist()
        declared = [version.columns[index] for index in indices if version.columns[index].generated not in HIDDEN]
        self.columns = tuple(policy.corrected(column) for column in declared)
        self.types = tuple(
            self._type(column, before.charset) for column, before in zip(self.columns, declared, strict=True)
        )
        self.widths: Int8s = np.array([each.width for each in self.types], np.int8)
        self._key = self._key_slots()
        self._read = pa.schema(
            [pa.field(column.name, each.type.arrow) for column, each in zip(self.columns, self.types, strict=True)]
        )
        self.schema, self._rules = self._read, None
        if policy.rules:
            self._rules = BoundRules(policy.rules, version, self.columns, [each.type for each in self.types])
            self.schema = pa.schema(
                [
                    pa.field(each.name, kind.arrow)
                    for each, kind in zip(self._rules.shown_columns, self._rules.shown_types, strict=True)
                ]
            )
        self._shown = self.schema
        if (shard := policy.shard) is not None:
            shard.refuse_taken(version, self.columns if self._rules is None else self._rules.shown_columns)
            self.schema = self._shown.append(pa.field(shard.column, shard.type().arrow))
        self._refused: list[RefusedCell] = []

    def select_list(self, quoted: Sequence[str]) -> str:
        """Returns the column list of the SELECT. `quoted`: the names of `columns`, quoted for SQL."""
        return ", ".join(each.expression.format(name) for name, each in zip(quoted, self.types, strict=True))

    def differences(self, sent: Sequence[SentColumn]) -> str:
        """Returns why the columns that the server sent do not fit this table version, or an empty text if they fit."""
        if len(sent) != len(self.types):
            return f"the result of the SELECT has {len(sent)} columns instead of {len(self.types)}"
        for column, each, found in zip(self.columns, self.types, sent, strict=True):
            if (why := _difference(each, found)) is not None:
                return (
                    f"column {column.name} is {column.mysql_type} in the schema history, and the SELECT "
                    f"returns the column {why}"
                )
        return ""

    def batch(self, buffer: Bytes, starts: Int64s, sizes: Int64s) -> pa.RecordBatch:
        """Decodes located values (columns by rows) into a record batch. Rows that do not meet the row filter are left out.

        Raises TableStoppedError if a key column is NULL, or if a value cannot be decoded. With the policy "quarantine", NULL replaces a
        value outside the key that cannot be decoded, and the table stops only after REFUSED_VALUES_MAX such values.
        """
        found: list[tuple[int, int, bytes, str]] = []
        arrays = [
            self._finished(slot, Values(buffer, starts[slot], sizes[slot]), found) for slot in range(len(self.columns))
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._read)
        self._refuse_null_keys(batch, starts)
        if found:
            self._keep_refused(found, batch)
        shown = batch if self._rules is None else self._ruled(batch, self._rules)
        shard = self.policy.shard
        return shown if shard is None else shard.inserted_into(shown, len(self._shown))

    def _ruled(self, batch: pa.RecordBatch, rules: BoundRules) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(rules.read(batch.columns), schema=self._shown)

    def take_refused(self) -> tuple[RefusedCell, ...]:
        """Returns the values that the policy "quarantine" replaced by NULL since the last call."""
        taken, self._refused = tuple(self._refused), []
        return taken

    def _type(self, column: Column, declared_charset: str) -> ResultType:
        try:
            return result_type(column, declared_charset, self.policy.zero_dates)
        except TypeUnsupportedError as error:
            raise self._stopped(TableState.TYPE_UNSUPPORTED, str(error)) from None

    def _stopped(self, state: TableState, reason: str) -> TableStoppedError:
        return TableStoppedError(self.version.database, self.version.table, state, reason)

    def _key_slots(self) -> list[int]:
        names = [column.name.lower() for column in self.columns]
        missing = [name for name in self.version.key if name.lower() not in names]
        if missing:
            reason = f"the key column {missing[0]} is not among the captured columns of the table; correct the key or the column filter"
            raise self._stopped(TableState.SCHEMA_MISMATCH, reason)
        return [names.index(name.lower()) for name in self.version.key]

    def _finished(self, slot: int, values: Values, found: list[tuple[int, int, bytes, str]]) -> AnyArray:
        finish = self.types[slot].finish
        try:
            return finish(values)
        except ValueRefusedError as error:
            if self.policy.undecodable != QUARANTINE or slot in self._key:
                column = self.columns[slot]
                why = self.policy.rules.shown_reason(column.name, error.reason)
                reason = f"a value of column {column.name} ({column.mysql_type}) in a row of the table {why}"
                raise self._stopped(TableState.TYPE_UNSUPPORTED, reason) from None
        refused = refusals(values, finish)
        found += [(slot, *each) for each in refused]
        starts, sizes = values.starts.copy(), values.sizes.copy()
        rows = [row for row, _, _ in refused]
        starts[rows], sizes[rows] = -1, 0
        return finish(Values(values.buffer, starts, sizes))

    def _keep_refused(self, found: list[tuple[int, int, bytes, str]], batch: pa.RecordBatch) -> None:
        if len(self._refused) + len(found) > REFUSED_VALUES_MAX:
            column, reason = self.columns[found[-1][0]], found[-1][3]
            why = f"more than {REFUSED_VALUES_MAX} values cannot be decoded, the last in column {column.name}: the value {reason}"
            raise self._stopped(
                TableState.TYPE_UNSUPPORTED, f"{why}; correct the charset of the column in `charsets` of the table"
            )
        rows = batch.take(pa.array([row for _, row, _, _ in found]))
        slots = self._key or range(len(self.columns))
        keys = rows.select([self.columns[slot].name for slot in slots]).to_pylist()
        self._refused += [
            RefusedCell(column=self.columns[slot], raw=raw, reason=reason, key=key)
            for (slot, _, raw, reason), key in zip(found, keys, strict=True)
        ]

    def _refuse_null_keys(self, batch: pa.RecordBatch, starts: Int64s) -> None:
        for slot in self._key:
            nulls = batch.column(slot)
            if not nulls.null_count:
                continue
            row = int(np.flatnonzero(nulls.is_null().to_numpy(zero_copy_only=False))[0])
            column = self.columns[slot]
            what = f"the key column {column.name} ({column.mysql_type}) is NULL in a row of the table"
            why = "several rows can have NULL in the key; name columns in `key` that are never NULL"
            if starts[slot, row] >= 0:
                why = (
                    "the value is a zero or partial date, which several rows can have; set `zero_dates: text` "
                    "for the table"
                )
            raise self._stopped(TableState.KEY_NULL, f"{what}: {why}")


def _difference(each: ResultType, sent: SentColumn) -> str | None:
    if sent.type_code not in each.sent:
        return f"with the type code {sent.type_code}"
    if each.unsigned is not None and sent.unsigned != each.unsigned:
        return "as an unsigned number" if sent.unsigned else "as a signed number"
    if each.charset:
        charset, declared = charset_of_id(sent.collation), charset_of_name(each.charset)
        if charset != declared:
            return f"with the charset {charset.name if charset else sent.collation}"
    return None
