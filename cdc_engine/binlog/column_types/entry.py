"""Defines column types: how values are stored in a row image and what they become, and the register of all types.

A type is one function from a `contracts.Column` to a `ColumnType`. The decorator `column_type` registers it under its
type codes, or `declared_type` under its declared name if it shares the code of another type. A new type is a new
function in the file of its family and touches nothing else. `cdc_engine.binlog.rows.decoder` decodes with the result,
and staging writes the Spark names into manifests.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from sluice.cdc_engine.binlog.type_codes import TypeCode
from sluice.cdc_engine.contracts import Bytes, Column, Int64s

if TYPE_CHECKING:
    AnyArray = pa.Array[Any]
else:
    AnyArray = pa.Array


class TypeUnsupportedError(Exception):
    """A column has a type or charset that is not decoded. The message names it. `rows` turns it into a TableStoppedError."""


class ValueRefusedError(Exception):
    """The value in `row` (of those given to `finish`) is not valid for its type. `rows` adds column and position."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(row, reason)
        self.row, self.reason = row, reason


@dataclasses.dataclass(frozen=True, eq=False)
class Values:
    """The located values of one column, one per row: `starts` (int64, offset in `buffer`, -1 for NULL) and `sizes` (int64, bytes)."""

    buffer: Bytes
    starts: Int64s
    sizes: Int64s

    @property
    def count(self) -> int:
        return len(self.starts)

    def validity(self) -> pa.Buffer | None:
        """Returns Arrow's validity bitmap, or None if no value is NULL."""
        return validity_of(self.starts >= 0) if self.starts.min(initial=0) < 0 else None

    def value(self, row: int) -> bytes:
        return self.buffer[self.starts[row] : self.starts[row] + self.sizes[row]].tobytes()


def buffer_of(array: np.typing.NDArray[Any]) -> pa.Buffer:
    """Returns the array's memory as an Arrow buffer, without a copy. It must be contiguous."""
    return pa.py_buffer(cast("Any", array))


def validity_of(valid: np.typing.NDArray[np.bool_]) -> pa.Buffer | None:
    """Returns Arrow's validity bitmap of a mask (bool, one per row), or None if all of it is true."""
    return None if valid.all() else buffer_of(np.packbits(valid, bitorder="little"))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ColumnType:
    """The type of a column. `prefix_bytes`: bytes of length before each value, or 0 and `width`: bytes of each value.

    `finish` turns the values of a column into an array of `arrow`, all rows at once. `spark`: the type's name in Spark
    SQL. `null_beside_source`: NULL also stands for some values that are not NULL in the source (zero dates), so a NOT
    NULL column may contain it. `by_zero_dates`: the type under other policies of zero dates than "null"; empty if there
    are none.
    """

    prefix_bytes: int = 0
    width: int = 0
    arrow: pa.DataType
    spark: str
    finish: Callable[[Values], AnyArray]
    null_beside_source: bool = False
    by_zero_dates: Mapping[str, ColumnType] = dataclasses.field(default_factory=dict)


Factory = Callable[[Column], ColumnType]
REGISTER: dict[int, Factory] = {}
REGISTER_BY_NAME: dict[str, Factory] = {}
NOT_DECODED = ("xmltype",)  # declared types that share another type's code


def column_type(*codes: TypeCode) -> Callable[[Factory], Factory]:
    """Registers the decorated function for these type codes."""

    def register(factory: Factory) -> Factory:
        REGISTER.update(dict.fromkeys(codes, factory))
        return factory

    return register


def declared_type(name: str) -> Callable[[Factory], Factory]:
    """Registers the decorated function for columns that are declared with this type, whatever their code."""

    def register(factory: Factory) -> Factory:
        REGISTER_BY_NAME[name] = factory
        return factory

    return register


def type_of(column: Column, zero_dates: str = "null") -> ColumnType:
    """Returns the type of a column. Raises TypeUnsupportedError with column and type if there is none.

    `zero_dates`: what an invalid date becomes: "null", "error" (ValueRefusedError) or "text" (the column is what SELECT
    prints).
    """
    declared = column.mysql_type.lower().split("(")[0].split(" ")[0]
    factory = REGISTER_BY_NAME.get(declared) or REGISTER.get(column.type_code)
    if factory is None or declared in NOT_DECODED:
        named = column.mysql_type or f"with type code {column.type_code}"
        raise TypeUnsupportedError(f"column {column.name} is {named}, which is not decoded yet")
    found = factory(column)
    return found.by_zero_dates.get(zero_dates, found)
