"""Applies a table's row filter, column masks and transform, in this order, to the rows of one table version.

An update can change whether a row meets the filter. The update then becomes a delete or an insert, so that readers of the lake and
consumers never see a row that does not meet the filter.

    before image meets it   after image meets it   result
    yes                     yes                    the update
    yes                     no                     a delete of the before image
    no                      yes                    an insert of the after image
    no                      no                     nothing

For a filter, both images of each update must have all columns. For a transform, every image must have all columns. If the table has such a
rule and an image omits columns, the table stops.
"""

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
from sluice.cdc_engine.binlog.row_rules.transform import BoundTransform, Transform
from sluice.cdc_engine.contracts import Column, Int8s, Operation, TableVersion
from sluice.cdc_engine.errors import TableStoppedError
from sluice.cdc_engine.states import TableState


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowRules:
    """The rules in conf/ for the rows of a table. `condition`: the row filter as text (syntax in the module `expression`), or empty if
    there is no filter. `masks`: one mask per masked column. `transform`: the operator's function, or None.
    """

    condition: str = ""
    masks: tuple[ColumnMask, ...] = ()
    transform: Transform | None = None

    def __bool__(self) -> bool:
        """Returns whether the table has any rule."""
        return bool(self.condition or self.masks or self.transform)

    def as_settings(self) -> dict[str, Any]:
        """Returns the rules as JSON values. The callers compute a digest of the values, to find out whether the rules changed. Without a
        transform, the result has no key `transform`, so that digests of earlier Sluice versions stay valid.
        """
        settings = {"condition": self.condition, "masks": [dataclasses.asdict(mask) for mask in self.masks]}
        return settings if self.transform is None else {**settings, "transform": self.transform.as_settings()}

    @property
    def drops_rows(self) -> bool:
        """Whether the filter or the transform can drop rows."""
        return bool(self.condition) or (self.transform is not None and self.transform.drops)

    @property
    def wanted(self) -> frozenset[str]:
        """The names of the condition's columns, in lower case. Raises ConfigurationError if the condition cannot be parsed."""
        return columns_of(parse(self.condition)) if self.condition else frozenset()

    def shown_reason(self, column: str, reason: str) -> str:
        """Returns the reason why a value cannot be decoded, without details if the column is masked or transformed."""
        if self.transforms_any((column,)):
            return "cannot be decoded (details are not shown, because the value is transformed)"
        return (
            "cannot be decoded (details are not shown, because the value is masked)"
            if self.masks_any((column,))
            else reason
        )

    def touches(self, columns: Iterable[str]) -> bool:
        """Returns whether any of the columns has a mask, is in the condition, or is read or written by the transform."""
        names = {column.lower() for column in columns}
        return self.masks_any(names) or self.transforms_any(names) or bool(names & self.wanted)

    def transforms_any(self, columns: Iterable[str]) -> bool:
        """Returns whether the transform reads or writes any of the columns."""
        return self.transform is not None and any(self.transform.concerns(column) for column in columns)

    def masks_any(self, columns: Iterable[str]) -> bool:
        """Returns whether any of the columns has a mask."""
        masked = {each.column.lower() for each in self.masks}
        return any(column.lower() in masked for column in columns)


NO_RULES = RowRules()


class BoundRules:
    """The rules of a table, prepared for the columns of one table version. Raises TableStoppedError with the state ROWS_RULE if the rules
    do not fit the version, and with TRANSFORM_FAILED if the transform fails.

    `columns`, `types`: the captured columns and their types, in the order of a record batch's columns. `shown_columns`, `shown_types`: the
    columns and their types after masking and the transform.
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
        #: Whether the rules can drop rows. In that case, `streamed` must get both images of each update.
        self.filters = rules.drops_rows
        self._transform = self._with_transform(rules.transform) if rules.transform is not None else None

    @property
    def needs_whole(self) -> bool:
        """Whether the rules require that every image has all columns."""
        return self.filters or self._transform is not None

    def mask_of(self, column: str) -> ColumnMask | None:
        return self._masks.get(self._names.index(column.lower())) if column.lower() in self._names else None

    def met_by(self, columns: Sequence[Column], arrays: Sequence[AnyArray]) -> Chosen:
        """Returns for each row whether it meets the condition. `columns`, `arrays`: only the columns that the condition uses."""
        if self._condition is None:
            return np.ones(len(arrays[0]), bool)
        return self._condition.met({column.name.lower(): each for column, each in zip(columns, arrays, strict=True)})

    def read(self, arrays: Sequence[AnyArray]) -> list[AnyArray]:
        """Applies the rules to rows that a SELECT read. Returns the columns after masking and the transform, without the rows that the
        rules drop.
        """
        if self._transform is not None:
            return self._transformed(self._transform, arrays)[1]
        return self._masked(arrays if self._condition is None else _chosen(arrays, self._met(self._condition, arrays)))

    def streamed(
        self, operation: Int8s, arrays: Sequence[AnyArray], compared: Sequence[int]
    ) -> tuple[Chosen | None, Int8s, list[AnyArray]]:
        """Applies the rules to the images of row events. Returns (which images remain, or None for all; new operation of each image;
        columns of the remaining images after masking and the transform). In `arrays`, each after image follows its before image.

        `compared`: indices of the columns whose change needs a before image, usually the key. If both images of an update meet the filter,
        the before image remains only if one of these columns changes, or if `compared` is empty.
        """
        if self._transform is not None:
            met, shown = self._transformed(self._transform, arrays)
            if met is None:
                return None, operation, shown
            left, now = _left(operation, met, [arrays[index] for index in compared])
            return left, now, _chosen(shown, left[met])
        if self._condition is None:
            return None, operation, self._masked(arrays)
        left, now = _left(operation, self._met(self._condition, arrays), [arrays[index] for index in compared])
        return left, now, self._masked(_chosen(arrays, left))

    def _met(self, condition: Condition, arrays: Sequence[AnyArray]) -> Chosen:
        return condition.met({name: arrays[self._names.index(name)] for name in condition.columns})

    def _masked(self, arrays: Sequence[AnyArray]) -> list[AnyArray]:
        return [self._masks[index].shown(each) if index in self._masks else each for index, each in enumerate(arrays)]

    def _transformed(
        self, transform: BoundTransform, arrays: Sequence[AnyArray]
    ) -> tuple[Chosen | None, list[AnyArray]]:
        """Returns (which rows remain, or None for all; the columns of the remaining rows after masking and the transform). The transform
        gets only rows that meet the condition.
        """
        met = None if self._condition is None else self._met(self._condition, arrays)
        shown, kept = transform.applied(self._masked(arrays if met is None else _chosen(arrays, met)))
        if kept is None:
            return met, shown
        captured = kept
        if met is not None:
            captured = met.copy()
            captured[met] = kept
        return captured, _chosen(shown, kept)

    def _with_transform(self, transform: Transform) -> BoundTransform:
        if transform.drops and row_end(self._version.columns) >= 0:
            raise self._stopped(
                "the transform drops rows, which Sluice does not support for a system-versioned table: set "
                "`drops: false`, and change the function to return every row"
            )
        found = BoundTransform(transform, self._version, self.shown_columns, self.shown_types, self._key)
        self.shown_columns, self.shown_types = tuple(found.shown_columns), tuple(found.shown_types)
        return found

    def _bound(self, masks: Sequence[ColumnMask], types: Sequence[ColumnType]) -> Mapping[int, ColumnMask]:
        found: dict[int, ColumnMask] = {}
        every = {column.name.lower() for column in self._version.columns}
        for mask in masks:
            name = mask.column.lower()
            if name not in every and not mask.may_be_missing:
                raise self._stopped(
                    f"conf/ masks the column {mask.column}, which the table does not have; if the column was "
                    "renamed, its values would be visible: correct `masks`, or set `if_missing: ignore` for "
                    "the mask"
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
            raise self._stopped(
                "conf/ filters rows of the table, which Sluice does not support for a system-versioned table: "
                "remove `rows`"
            )
        arrow = {name: each.arrow for name, each in zip(self._names, types, strict=True)}
        try:
            return Condition(parse(text), arrow)
        except ConditionRefusedError as error:
            raise self._stopped(f"conf/ keeps the rows where {text}, but {error}: correct `rows`") from None

    def _stopped(self, reason: str) -> TableStoppedError:
        return TableStoppedError(self._version.database, self._version.table, TableState.ROWS_RULE, reason)


def _left(operation: Int8s, met: Chosen, compared: Sequence[AnyArray]) -> tuple[Chosen, Int8s]:
    """Returns (which images remain, new operation of each image). `met`: which images meet the filter. `compared`: values of the columns
    whose change needs a before image. If both images of an update meet the filter, the before image remains only if one of these columns
    changes, or if `compared` is empty.
    """
    now, left = operation.copy(), met.copy()
    before = np.flatnonzero(operation == Operation.UPDATE_BEFORE)
    was, is_now = met[before], met[before + 1]
    now[before[was & ~is_now]] = Operation.DELETE
    now[before[~was & is_now] + 1] = Operation.INSERT
    left[before] = was & (~is_now | _changed(before, compared))
    return left, now


def _chosen(arrays: Sequence[AnyArray], chosen: Chosen) -> list[AnyArray]:
    return list(arrays) if chosen.all() else [each.filter(pa.array(chosen)) for each in arrays]


def _changed(before: Any, compared: Sequence[AnyArray]) -> Chosen:
    """Returns which before images differ from their after image in any column of `compared`. `before`: row numbers of the before images.
    The after image is in the row after its before image.
    """
    if not compared:
        return np.ones(len(before), bool)
    changed = np.zeros(len(before), bool)
    for values in compared:
        old: Any = values.take(pa.array(before))
        new: Any = values.take(pa.array(before + 1))
        differ: Any = pc.or_(pc.fill_null(pc.not_equal(old, new), False), pc.xor(pc.is_null(old), pc.is_null(new)))
        changed |= differ.to_numpy(zero_copy_only=False)
    return changed
