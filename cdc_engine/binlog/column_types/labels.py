"""ENUM and SET: a number in the row image (little-endian), the label or the labels joined by commas in the lake.

A server shows `?` for a character beyond U+FFFF in a label (information_schema, SHOW CREATE TABLE): such a label is not known, and a value
that has it is refused. One that is known stands in for `?` itself.
"""

from __future__ import annotations

import functools

import numpy as np
import pyarrow as pa

from cdc_engine.binlog.column_types import gather as rows_gather
from cdc_engine.binlog.column_types.entry import (
    AnyArray,
    ColumnType,
    TypeUnsupportedError,
    ValueRefusedError,
    Values,
    buffer_of,
    column_type,
)
from cdc_engine.binlog.type_codes import TypeCode
from cdc_engine.contracts import Column, Int64s

HIDDEN_CHARACTER = "\ufffe"  # in a label, for one that a server does not show; no text has it


@column_type(TypeCode.ENUM)
def enum(column: Column) -> ColumnType:
    """`metadata`'s low byte is the number's size. 0 is the error value, which SELECT prints as an empty string."""
    _require_labels(column)
    size = column.metadata & 0xFF
    labels = pa.array(["", *column.labels], pa.string())
    hidden = np.flatnonzero([False, *(HIDDEN_CHARACTER in label for label in column.labels)])
    finish = functools.partial(_enums, size=size, labels=labels, hidden=hidden)
    return ColumnType(width=size, arrow=pa.string(), spark="string", finish=finish)


@column_type(TypeCode.SET)
def set_(column: Column) -> ColumnType:
    """Bit i of the number stands for label i."""
    _require_labels(column)
    size = column.metadata & 0xFF
    finish = functools.partial(_sets, size=size, labels=column.labels)
    return ColumnType(width=size, arrow=pa.string(), spark="string", finish=finish)


def _require_labels(column: Column) -> None:
    if not column.labels:
        raise TypeUnsupportedError(f"column {column.name} is an enum or a set whose labels are not known")


def _numbers(values: Values, size: int) -> Int64s:
    numbers = np.empty(values.count, np.int64)
    rows_gather.little_endian_integers(values.buffer, values.starts, size, False, numbers)
    return numbers


def _enums(values: Values, size: int, labels: AnyArray, hidden: Int64s) -> AnyArray:
    numbers = _numbers(values, size)
    _refuse(numbers >= len(labels), f"is a number above the {len(labels) - 1} labels known")
    if len(hidden):
        _refuse(np.isin(numbers, hidden), _HIDDEN)
    return labels.take(_nulls(values, numbers))


def _sets(values: Values, size: int, labels: tuple[str, ...]) -> AnyArray:
    numbers = _numbers(values, size)
    if len(labels) < 64:
        _refuse(numbers >> len(labels) != 0, f"has bits above the {len(labels)} labels known")
    hidden = sum(1 << bit for bit, label in enumerate(labels) if HIDDEN_CHARACTER in label)
    if hidden:
        _refuse((numbers.view(np.uint64) & np.uint64(hidden)) != 0, _HIDDEN)
    unique, inverse = np.unique(numbers, return_inverse=True)
    texts = [_joined(int(number), labels) for number in unique]  # once a combination, not once a row
    return pa.array(texts, pa.string()).take(_nulls(values, inverse))


_HIDDEN = (
    "has a label that the source shows with `?`, for a character beyond U+FFFF or for itself; "
    "set binlog_row_metadata=FULL on the source"
)


def _joined(number: int, labels: tuple[str, ...]) -> str:
    return ",".join(label for index, label in enumerate(labels) if number >> index & 1)


def _nulls(values: Values, indices: Int64s) -> AnyArray:
    data = np.ascontiguousarray(indices, np.int64)
    return pa.Array.from_buffers(pa.int64(), values.count, [values.validity(), buffer_of(data)])


def _refuse(wrong: np.typing.NDArray[np.bool_], reason: str) -> None:
    if wrong.any():
        raise ValueRefusedError(int(np.flatnonzero(wrong)[0]), reason)
