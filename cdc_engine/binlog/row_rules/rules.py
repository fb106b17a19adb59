"""Binds a table's row filter and column masks to one version of the table, and applies them. Used by the decoders.

An update may move a row out of the filter or into it. It then becomes a delete or an insert, so that readers of the
lake and consumers never see the row outside the filter.

    before image meets it   after image meets it
    yes                     yes                    the update
    yes                     no                     a delete of the before image
    no                      yes                    an insert of the after image
    no                      no                     nothing

So every update of such a table must have both images whole. A table whose images are incomplete stops by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.cdc_engine.binlog.column_types.entry import AnyArray, ColumnType
from sluice.cdc_engine.binlog.row_rules.condition import Chosen, Condition, ConditionRefusedError
from sluice.cdc_engine.binlog.row_rules.expression import columns_of, parse
from sluice.cdc_engine.binlog.row_rules.history_rows import row_end
from sluice.cdc_engine.binlog.row_rules.masks import ColumnMask
from sluice.cdc_engine.contracts import Column, Int8s, Operation, TableVersion
from sluice.cdc_engine.errors import TableStoppedError
from sluice.cdc_engine.states import TableState


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowRules:
    """The filter and the masks as configured. `condition`: see `expression`; empty for all rows. `masks`: one per masked column."""

    condition: str = ""
    masks: tuple[ColumnMask, ...] = ()

    def __bool__(self) -> bool:
        """Returns whether there is a filter or a mask."""
        return bool(self.condition or self.masks)

    @property
    def wanted(self) -> frozenset[str]:
        """Returns the columns of the condition, in lower case. Raises ConfigurationError."""
        return columns_of(parse(self.condition)) if self.condition else frozenset()

    def shown_reason(self, column: str, reason: str) -> str:
        """Returns why a value cannot be decoded, without details if the column is masked."""
        return "cannot be decoded (it is masked, so details are not shown)" if self.masks_any((column,)) else reason

    def touches(self, columns: Iterable[str]) -> bool:
        """Returns whether one of the columns is masked or part of the condition."""
        return self.masks_any(columns) or bool({column.lower() for column in columns} & self.wanted)

    def masks_any(self, columns: Iterable[str]) -> bool:
        """Returns whether one of the columns is masked."""
        masked = {each.column.lower() for each in self.masks}
        return any(column.lower() in masked for column in columns)


NO_RULES = RowRules()


class BoundRules:
    """The rules for one table version. Raises TableStoppedError with ROWS_RULE if they do not fit it.

    `columns`, `types`: of the captured columns, as in the batches. `shown_columns`, `shown_types`: after masking.
    """

    def __init__(
        self, rules: RowRules, version: TableVersion, columns: Sequence[Column], types: Sequence[ColumnType]
    ) -> None:
        self._version, self._names = version, [column.name.lower() for column in columns]
        self._key = [self._names.index(name.lower()) for name in version.key if name.lower() in self._names]
        self._masks = self._bound(rules.masks, types)
        self._condition = self._conditioned(rules.condition, types)
        shown = [(self._masks.get(index), column, types[index]) for index, column in enumerate(columns)]
        self.shown_columns = tuple(mask.shown_column(column) if mask else column for mask, column, _ in shown)
        self.shown_types = tuple(mask.shown_type(each) if mask else each for mask, _, each in shown)

    @property
    def filters(self) -> bool:
        """Whether rows are left out. If so, `left` needs both images of each update."""
        return self._condition is not None

    def mask_of(self, column: str) -> ColumnMask | None:
        return self._masks.get(self._names.index(column.lower())) if column.lower() in self._names else None

    def met(self, arrays: Sequence[AnyArray]) -> Chosen:
        """Returns which rows meet the condition. `arrays`: one per column."""
        if self._condition is None:
            return np.ones(len(arrays[0]) if arrays else 0, bool)
        return self._condition.met({name: arrays[self._names.index(name)] for name in self._condition.columns})

    def met_by(self, columns: Sequence[Column], arrays: Sequence[AnyArray]) -> Chosen:
        """Returns which rows meet the condition, from the condition's columns only."""
        if self._condition is None:
            return np.ones(len(arrays[0]), bool)
        return self._condition.met({column.name.lower(): each for column, each in zip(columns, arrays, strict=True)})

    def left(self, operation: Int8s, arrays: Sequence[AnyArray], compared: Sequence[int]) -> tuple[Chosen, Int8s]:
        """Returns which images are captured, and the operation that each one has then. Each after image follows its before image.

        `compared`: the columns whose change leaves the before image of an update within the condition; of none all are left.
        """
        if self._condition is None:
            return np.ones(len(operation), bool), operation
        met = self.met(arrays)
        now, left = operation.copy(), met.copy()
        before = np.flatnonzero(operation == Operation.UPDATE_BEFORE)
        was, is_now = met[before], met[before + 1]
        now[before[was & ~is_now]] = Operation.DELETE
        now[before[~was & is_now] + 1] = Operation.INSERT
        left[before] = was & (~is_now | _changed(before, [arrays[index] for index in compared]))
        return left, now

    def masked(self, arrays: Sequence[AnyArray]) -> list[AnyArray]:
        """Returns the columns after masking. Columns after the table's own are unchanged."""
        return [self._masks[index].shown(each) if index in self._masks else each for index, each in enumerate(arrays)]

    def _bound(self, masks: Sequence[ColumnMask], types: Sequence[ColumnType]) -> Mapping[int, ColumnMask]:
        found: dict[int, ColumnMask] = {}
        every = {column.name.lower() for column in self._version.columns}
        for mask in masks:
            name = mask.column.lower()
            if name not in every and not mask.may_be_missing:
                raise self._stopped(
                    f"conf/ masks its column {mask.column}, which it does not have; if the column was renamed, its values "
                    "would be visible: correct `masks`, or set `if_missing: ignore` there"
                )
            if name not in self._names:
                continue
            index = self._names.index(name)
            if why := mask.refusal(types[index], in_key=index in self._key):
                raise self._stopped(f"conf/ sets the mask {mask.kind} for column {mask.column}, but {why}")
            found[index] = mask
        return found

    def _conditioned(self, text: str, types: Sequence[ColumnType]) -> Condition | None:
        if not text:
            return None
        if row_end(self._version.columns) >= 0:
            raise self._stopped("conf/ filters its rows, which is not done for a system-versioned table: remove `rows`")
        arrow = {name: each.arrow for name, each in zip(self._names, types, strict=True)}
        try:
            return Condition(parse(text), arrow)
        except ConditionRefusedError as error:
            raise self._stopped(f"conf/ keeps its rows where {text}, but {error}: correct `rows`") from None

    def _stopped(self, reason: str) -> TableStoppedError:
        return TableStoppedError(self._version.database, self._version.table, TableState.ROWS_RULE, reason)


def _changed(before: Any, compared: Sequence[AnyArray]) -> Chosen:
    """Returns which of the before images (given by row) differ from the after images that follow them."""
    if not compared:
        return np.ones(len(before), bool)
    changed = np.zeros(len(before), bool)
    for values in compared:
        old: Any = values.take(pa.array(before))
        new: Any = values.take(pa.array(before + 1))
        differ: Any = pc.or_(pc.fill_null(pc.not_equal(old, new), False), pc.xor(pc.is_null(old), pc.is_null(new)))
        changed |= differ.to_numpy(zero_copy_only=False)
    return changed
