"""Applies an operator's function (transform) to the rows of a table. The function can change values, add columns and drop rows. Used by
`rules`. The module `instance.tables.transform_functions` makes `Transform.call`, which calls the function.

The function gets the columns `reads` of a record batch, after the row filter and the masks, and returns the columns `writes` for the same
rows in the same order. The function gets neither the operation nor the binlog position of a row. So its result for a row is the same in a
snapshot, in a change and in a repair.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.cdc_engine.binlog.column_types.entry import AnyArray, ColumnType, Values
from sluice.cdc_engine.binlog.type_codes import TypeCode
from sluice.cdc_engine.contracts import Column, TableVersion
from sluice.cdc_engine.errors import TableStoppedError
from sluice.cdc_engine.states import TableState

KEEP = "_sluice_keep"  # A function with `drops` also returns this boolean column. Rows with false are dropped.
Kept = np.typing.NDArray[np.bool_]
_SPARK_TYPES = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us", "UTC"): "timestamp",
    pa.timestamp("us"): "timestamp_ntz",
}
TYPES = "bool, int8 to int64, float32, float64, decimal128, string, binary, date32, timestamp('us') and timestamp('us', 'UTC')"


class TransformFailedError(Exception):
    """An operator's function (transform) raised an error or did not return in time. The message is for operators."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Transform:
    """An operator's function for one table, with its settings in conf/. `function`: the name of the function. `reads`, `writes`: the
    columns that the function gets and returns. `drops`: whether the function also returns the column KEEP.

    `identity`: a value that changes whenever the function's results can change. `call`: calls the function, and raises TransformFailedError
    if the function fails.
    """

    function: str
    reads: tuple[str, ...]
    writes: tuple[str, ...] = ()
    drops: bool = False
    identity: str = ""
    call: Callable[[pa.RecordBatch], pa.RecordBatch] = dataclasses.field(compare=False, repr=False)

    def as_settings(self) -> dict[str, Any]:
        """Returns the transform's settings and its `identity` as JSON values, for a digest that shows whether the transform changed."""
        named = (each for each in dataclasses.fields(self) if each.name != "call")
        return {each.name: getattr(self, each.name) for each in named}

    def concerns(self, column: str) -> bool:
        """Returns whether the function reads or writes the column."""
        return self.writes_to(column) or column.lower() in {name.lower() for name in self.reads}

    def writes_to(self, column: str) -> bool:
        """Returns whether the function writes the column."""
        return column.lower() in {name.lower() for name in self.writes}


class BoundTransform:
    """A transform, prepared for the columns of one table version. `columns`, `types`: the table's columns before the transform, after
    masking. `key`: indices of the key columns in `columns`.

    `shown_columns`, `shown_types`: the table's columns after the transform. Columns that the function adds come last. Raises
    TableStoppedError with the state ROWS_RULE if the transform does not fit the table, and with TRANSFORM_FAILED if the function fails.
    """

    def __init__(
        self,
        transform: Transform,
        version: TableVersion,
        columns: Sequence[Column],
        types: Sequence[ColumnType],
        key: Sequence[int],
    ) -> None:
        self._transform, self._version = transform, version
        self._names = [column.name.lower() for column in columns]
        self._reads = [self._slot(name) for name in transform.reads]
        self._slots = {name: self._written(name, key) for name in transform.writes}
        self._input = pa.schema([pa.field(columns[slot].name, types[slot].arrow) for slot in self._reads])
        self._checked, self._types = False, dict[str, pa.DataType]()
        nothing = self._called(
            pa.RecordBatch.from_arrays([pa.array([], each.type) for each in self._input], schema=self._input)
        )
        self._types = {name: nothing.schema.field(name).type for name in transform.writes}
        self.shown_columns, self.shown_types = list(columns), list(types)
        for name, slot in self._slots.items():
            self._show(name, slot)

    def applied(self, arrays: Sequence[AnyArray]) -> tuple[list[AnyArray], Kept | None]:
        """Calls the transform's function for rows of the table. Returns (columns, kept). `columns`: all columns of all rows after the
        transform. `kept`: which rows the function keeps, or None if it keeps all rows.
        """
        given = pa.RecordBatch.from_arrays([arrays[slot] for slot in self._reads], schema=self._input)
        result = self._called(given)
        self._check_first_rows(given, result)
        shown = [*arrays, *[None] * (len(self.shown_columns) - len(arrays))]
        added = len(arrays)
        for name, slot in self._slots.items():
            shown[slot if slot >= 0 else added] = result.column(name)
            added += slot < 0
        kept = result.column(KEEP).to_numpy(zero_copy_only=False) if self._transform.drops else None
        return shown, kept  # type: ignore[return-value]

    def _slot(self, name: str) -> int:
        if name.lower() not in self._names:
            raise self._unfit(
                f"reads the column {name}, which the table does not have or conf/ leaves out: correct `reads` "
                "and the function"
            )
        return self._names.index(name.lower())

    def _written(self, name: str, key: Sequence[int]) -> int:
        """Returns the index of the column that the function replaces, or -1 if the function adds the column. Raises TableStoppedError if
        the function must not write the column.
        """
        slot = self._names.index(name.lower()) if name.lower() in self._names else -1
        if slot in key:
            raise self._unfit(
                f"writes the key column {name}, and a row with a changed key cannot be found again: write "
                "another column"
            )
        if slot < 0 and any(column.name.lower() == name.lower() for column in self._version.columns):
            raise self._unfit(
                f"writes the column {name}, which conf/ leaves out: correct `writes`, or the column filter"
            )
        return slot

    def _show(self, name: str, slot: int) -> None:
        """Updates `shown_columns` and `shown_types` for a column that the function returns. Removes the source's NOT NULL, default and
        labels, which need not fit the function's values.
        """
        arrow = self._types[name]
        spark = _SPARK_TYPES.get(arrow) or (
            f"decimal({arrow.precision},{arrow.scale})"
            if pa.types.is_decimal128(arrow) and 0 <= arrow.scale <= arrow.precision
            else ""
        )
        if not spark:
            raise self._failed(
                f"the function returned {name} as {arrow}, and columns in the lake can be {TYPES}: cast the column"
            )
        shown_type = ColumnType(arrow=arrow, spark=spark, finish=_never)
        if slot < 0:
            self.shown_columns.append(Column(name=name, type_code=TypeCode.VARCHAR))
            self.shown_types.append(shown_type)
            return
        there = self.shown_columns[slot]
        kept_type = there.mysql_type if spark == self.shown_types[slot].spark else ""
        self.shown_columns[slot] = dataclasses.replace(
            there, nullable=True, default=(), labels=(), mysql_type=kept_type
        )
        self.shown_types[slot] = shown_type

    def _called(self, given: pa.RecordBatch) -> pa.RecordBatch:
        try:
            result: Any = self._transform.call(given)
        except TransformFailedError as error:
            raise self._failed(str(error)) from None
        wanted = [*self._transform.writes, *([KEEP] if self._transform.drops else [])]
        if not isinstance(result, pa.RecordBatch):
            raise self._failed(f"the function returned a {type(result).__name__}: return a pyarrow.RecordBatch")
        if sorted(result.schema.names) != sorted(wanted):
            found = ", ".join(result.schema.names) or "none"
            raise self._failed(
                f"the function returned the columns {found} instead of the columns {', '.join(wanted)} in conf/"
            )
        if result.num_rows != given.num_rows:
            raise self._failed(
                f"the function returned {result.num_rows} rows for {given.num_rows} rows: return each row, "
                f"and drop rows by the column {KEEP} (`drops: true`)"
            )
        for name, wanted_type in self._types.items():
            if (found_type := result.schema.field(name).type) != wanted_type:
                raise self._failed(
                    f"the function returned {name} as {found_type}, and as {wanted_type} for an empty batch: "
                    "cast the column to one type"
                )
        if self._transform.drops:
            self._check_kept(result.column(KEEP))
        try:
            result.validate(full=True)
        except pa.ArrowInvalid:  # The message leaves out Arrow's text, which contains values of rows.
            raise self._failed(
                "the function returned values that are not valid for their types: text that is not UTF-8, or "
                "a decimal with too many digits"
            ) from None
        return result

    def _check_kept(self, kept: AnyArray) -> None:
        if kept.type != pa.bool_():
            raise self._failed(f"the function returned {KEEP} as {kept.type}: return booleans")
        if kept.null_count:
            raise self._failed(
                f"the function returned NULL in {KEEP} for {kept.null_count} of {len(kept)} rows: return true "
                "or false for each row (a comparison with NULL is NULL: use pyarrow.compute.fill_null)"
            )

    def _check_first_rows(self, given: pa.RecordBatch, result: pa.RecordBatch) -> None:
        """Calls the function again for one row alone, and raises TableStoppedError if the row's result differs. Does this only for the
        first batch with rows. A result that depends on other rows, on time or on chance would differ between a snapshot, a change and a
        repair of the row.
        """
        if self._checked or not given.num_rows:
            return
        self._checked, last = True, given.num_rows - 1
        alone = self._called(given.slice(last, 1)).select(result.schema.names)
        if not all(map(_is_same, alone.columns, result.slice(last, 1).columns)):
            raise self._failed(
                "the function returned a different result for a row when the batch had this row alone: the "
                "result must depend only on the row (not on other rows, the time, random numbers, or earlier "
                "calls)"
            )

    def _unfit(self, reason: str) -> TableStoppedError:
        what = f"the transform {self._transform.function} {reason}"
        return TableStoppedError(self._version.database, self._version.table, TableState.ROWS_RULE, what)

    def _failed(self, reason: str) -> TableStoppedError:
        what = (
            f"the transform {self._transform.function} failed: {reason}. Correct the function and restart the "
            "engine, which then re-snapshots the table. If `version` of the transform in conf/ stays the same, the "
            "engine does not re-snapshot the table: then also resume the table"
        )
        return TableStoppedError(self._version.database, self._version.table, TableState.TRANSFORM_FAILED, what)


def _is_same(one: AnyArray, other: AnyArray) -> bool:
    """Returns whether two arrays with one value each are equal. Unlike in Arrow, NaN equals NaN."""
    if one.equals(other):
        return True
    return pa.types.is_floating(one.type) and pc.is_nan(one).to_pylist() == pc.is_nan(other).to_pylist() == [True]


def _never(_: Values) -> AnyArray:
    raise AssertionError("a transform's result is not decoded from bytes")
