"""Defines `ColumnType` and the register of all column types. A column type says how a row image stores the values of a column, and how
these values are decoded.

One function per MySQL type makes a `ColumnType` from a `contracts.Column`. The decorator `column_type` registers the function for type
codes. If a type shares its code with another type, the decorator `declared_type` registers the function for the type's declared name. A new
type needs only a new function in the file of its family. `cdc_engine.binlog.rows.decoder` decodes columns with their `ColumnType`, and
staging writes the Spark names of the types into manifests.
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
    """Sluice cannot decode a column's type or charset. The message names the type or charset. The package `binlog.rows` converts this error
    to a TableStoppedError.
    """


class ValueRefusedError(Exception):
    """A value is not valid for its type. `row`: the index of the value among the values that were decoded in one call of
    `ColumnType.finish`. The package `binlog.rows` adds the column and the position to the message.
    """

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
    """Returns the array's memory as an Arrow buffer, without a copy. The array must be contiguous."""
    return pa.py_buffer(cast("Any", array))


def validity_of(valid: np.typing.NDArray[np.bool_]) -> pa.Buffer | None:
    """Returns Arrow's validity bitmap for a mask (bool, one per row), or None if every row is valid."""
    return None if valid.all() else buffer_of(np.packbits(valid, bitorder="little"))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ColumnType:
    """How a row image stores a column's values, and how to decode them.

    If `prefix_bytes` is not 0, each value is stored after its length, which has `prefix_bytes` bytes. If `prefix_bytes` is 0, each value
    has `width` bytes. `finish` decodes all values of a column to an Arrow array of the type `arrow`. `spark`: the type's name in Spark SQL.
    `may_become_null`: whether invalid dates become NULL, so that even a NOT NULL column of the source may contain NULL. `by_zero_dates`:
    the types that replace this type under the zero-date policies "error" and "text"; empty for types without dates.
    """

    prefix_bytes: int = 0
    width: int = 0
    arrow: pa.DataType
    spark: str
    finish: Callable[[Values], AnyArray]
    may_become_null: bool = False
    by_zero_dates: Mapping[str, ColumnType] = dataclasses.field(default_factory=dict)


Factory = Callable[[Column], ColumnType]
REGISTER: dict[int, Factory] = {}
REGISTER_BY_NAME: dict[str, Factory] = {}
NOT_DECODED = ("xmltype",)  # Declared types that Sluice refuses, although REGISTER has their type code.


def column_type(*codes: TypeCode) -> Callable[[Factory], Factory]:
    """Returns a decorator that registers a function for the type codes."""

    def register(factory: Factory) -> Factory:
        REGISTER.update(dict.fromkeys(codes, factory))
        return factory

    return register


def declared_type(name: str) -> Callable[[Factory], Factory]:
    """Returns a decorator that registers a function for columns whose declared type is `name`. A declared type takes precedence over a type
    code.
    """

    def register(factory: Factory) -> Factory:
        REGISTER_BY_NAME[name] = factory
        return factory

    return register


def type_of(column: Column, zero_dates: str = "null") -> ColumnType:
    """Returns the `ColumnType` of a column. Raises TypeUnsupportedError, with column and type, if Sluice cannot decode the column.

    `zero_dates`: the policy for invalid dates: "null", "error" (raise ValueRefusedError) or "text" (the whole column becomes the text
    that SELECT prints).
    """
    declared = column.mysql_type.lower().split("(")[0].split(" ")[0]
    factory = REGISTER_BY_NAME.get(declared) or REGISTER.get(column.type_code)
    if factory is None or declared in NOT_DECODED:
        named = column.mysql_type or f"of type code {column.type_code}"
        raise TypeUnsupportedError(f"column {column.name} is {named}, a type that Sluice cannot decode")
    found = factory(column)
    return found.by_zero_dates.get(zero_dates, found)
