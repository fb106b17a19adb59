"""Decodes ENUM and SET: a little-endian number in the row image becomes the label, or the labels joined by commas.

In information_schema and SHOW CREATE TABLE, the server replaces each character beyond U+FFFF in a label by `?`. If the column's charset has
such characters, Sluice cannot know the real character of a `?`, and refuses values with such a label. The labels in table maps
(binlog_row_metadata=FULL) are complete. With these labels, Sluice decodes all values, even if a label contains `?`.
"""

from __future__ import annotations

import functools

import numpy as np
import pyarrow as pa

from sluice.cdc_engine.binlog.column_types import gather as rows_gather
from sluice.cdc_engine.binlog.column_types.entry import (
    AnyArray,
    ColumnType,
    TypeUnsupportedError,
    ValueRefusedError,
    Values,
    buffer_of,
    column_type,
)
from sluice.cdc_engine.binlog.column_types.transcoding import ARROW_BYTES_MAX
from sluice.cdc_engine.binlog.compiled import kernel
from sluice.cdc_engine.binlog.type_codes import TypeCode
from sluice.cdc_engine.contracts import Bytes, Column, Int32s, Int64s

COMMA = ord(",")
# In a label from information_schema, U+FFFE replaces a `?` that may stand for another character. No real text contains U+FFFE.
HIDDEN_CHARACTER = "\ufffe"


@column_type(TypeCode.ENUM)
def enum(column: Column) -> ColumnType:
    """Returns the type of an ENUM column. A row image has the number of the label, counted from 1. The low byte of `metadata` is the size
    of this number in bytes. The number 0 is the server's error value, which SELECT prints as an empty string.
    """
    _require_labels(column)
    size = column.metadata & 0xFF
    labels = pa.array(["", *column.labels], pa.string())
    hidden = np.flatnonzero([False, *(HIDDEN_CHARACTER in label for label in column.labels)])
    finish = functools.partial(_enums, size=size, labels=labels, hidden=hidden)
    return ColumnType(width=size, arrow=pa.string(), spark="string", finish=finish)


@column_type(TypeCode.SET)
def set_(column: Column) -> ColumnType:
    """Returns the type of a SET column. Bit i of the number is set if the value has label i."""
    _require_labels(column)
    size = column.metadata & 0xFF
    finish = functools.partial(_sets, size=size, labels=column.labels)
    return ColumnType(width=size, arrow=pa.string(), spark="string", finish=finish)


def _require_labels(column: Column) -> None:
    if not column.labels:
        raise TypeUnsupportedError(f"column {column.name} is an enum or a set, and its labels are unknown")


def _numbers(values: Values, size: int) -> Int64s:
    numbers = np.empty(values.count, np.int64)
    rows_gather.little_endian_integers(values.buffer, values.starts, size, False, numbers)
    return numbers


def _enums(values: Values, size: int, labels: AnyArray, hidden: Int64s) -> AnyArray:
    numbers = _numbers(values, size)
    _refuse(numbers >= len(labels), f"is a label number above the {len(labels) - 1} known labels")
    if len(hidden):
        _refuse(np.isin(numbers, hidden), _HIDDEN)
    return labels.take(_nulls(values, numbers))


def _sets(values: Values, size: int, labels: tuple[str, ...]) -> AnyArray:
    numbers = _numbers(values, size)
    if len(labels) < 64:
        _refuse(numbers >> len(labels) != 0, f"has bits for labels above the {len(labels)} known labels")
    hidden = sum(1 << bit for bit, label in enumerate(labels) if HIDDEN_CHARACTER in label)
    if hidden:
        _refuse((numbers.view(np.uint64) & np.uint64(hidden)) != 0, _HIDDEN)
    return _joined(values, numbers, labels)


def _joined(values: Values, numbers: Int64s, labels: tuple[str, ...]) -> AnyArray:
    encoded = [label.encode() for label in labels]
    members = [int((numbers >> bit & 1).sum()) for bit in range(len(labels))]
    room = sum(count * (len(label) + 1) for count, label in zip(members, encoded, strict=True))
    if room > ARROW_BYTES_MAX:
        raise ValueRefusedError(
            0,
            f"makes the column's text {room} bytes long, more than the {ARROW_BYTES_MAX} bytes of an Arrow string array",
        )
    offsets, out = np.empty(values.count + 1, np.int32), np.empty(room, np.uint8)
    texts = np.frombuffer(b"".join(encoded) or b"\0", np.uint8)
    join_labels(numbers, texts, np.cumsum([0, *map(len, encoded)], dtype=np.int64), offsets, out)
    buffers = [values.validity(), buffer_of(offsets), buffer_of(out[: offsets[-1]])]
    return pa.Array.from_buffers(pa.string(), values.count, buffers)


@kernel
def join_labels(numbers: Int64s, texts: Bytes, begins: Int64s, offsets: Int32s, out: Bytes) -> None:
    """Writes one text per number to `out`, back to back: the labels of the number's set bits, joined by commas. Writes the ends of the
    texts to `offsets`. Label i is `texts[begins[i] : begins[i + 1]]`.
    """
    used = np.int64(0)
    offsets[0] = 0
    for row in range(numbers.shape[0]):
        first = True
        for label in range(begins.shape[0] - 1):
            if numbers[row] >> label & 1:
                if not first:
                    out[used] = COMMA
                    used += 1
                first = False
                for index in range(begins[label], begins[label + 1]):
                    out[used] = texts[index]
                    used += 1
        offsets[row + 1] = used


_HIDDEN = (
    "has a label that the source shows with `?`, which may stand for a character beyond U+FFFF; "
    "set binlog_row_metadata=FULL on the source"
)


def _nulls(values: Values, indices: Int64s) -> AnyArray:
    data = np.ascontiguousarray(indices, np.int64)
    return pa.Array.from_buffers(pa.int64(), values.count, [values.validity(), buffer_of(data)])


def _refuse(wrong: np.typing.NDArray[np.bool_], reason: str) -> None:
    if wrong.any():
        raise ValueRefusedError(int(np.flatnonzero(wrong)[0]), reason)
