"""Decodes MySQL's binary JSON into the text that the server prints. MariaDB's JSON is a LONGTEXT, which `text` decodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import numpy as np
import pyarrow as pa

from sluice.cdc_engine.binlog.column_types import gather as rows_gather
from sluice.cdc_engine.binlog.column_types.entry import (
    AnyArray,
    ColumnType,
    ValueRefusedError,
    Values,
    buffer_of,
    column_type,
)
from sluice.cdc_engine.binlog.column_types.transcoding import ARROW_BYTES_MAX
from sluice.cdc_engine.binlog.documents import statuses
from sluice.cdc_engine.binlog.documents.containers import STACK_SHAPE
from sluice.cdc_engine.binlog.documents.print_documents import DONE, print_documents
from sluice.cdc_engine.binlog.type_codes import TypeCode
from sluice.cdc_engine.contracts import Bytes, Column, Int32s

# How many bytes a text buffer has in addition to the estimated text. A kernel prints a number only if the buffer has free bytes for the
# longest possible number, so the buffer must be longer than its text.
SPARE_BYTES = 1 << 10
PrintFrom = Callable[[int, Int32s, Bytes], tuple[int, int]]


@column_type(TypeCode.JSON)
def json(column: Column) -> ColumnType:
    return ColumnType(prefix_bytes=column.metadata or 4, arrow=pa.string(), spark="string", finish=_documents)


def _documents(values: Values) -> AnyArray:
    stack = np.empty(STACK_SHAPE, np.int64)

    def print_from(row: int, offsets: Int32s, text: Bytes) -> tuple[int, int]:
        return print_documents(values.buffer, values.starts, values.sizes, row, offsets, text, stack)

    return printed(values, int(rows_gather.bytes_total(values.sizes)), print_from, _refused)


def _refused(status: int, row: int) -> NoReturn:
    raise ValueRefusedError(row, f"is not a JSON document of MySQL: {statuses.MESSAGES[status]}")


def printed(values: Values, expected: int, print_from: PrintFrom, otherwise: Callable[[int, int], bytes]) -> AnyArray:
    """Returns an Arrow array of the texts that a kernel prints, one per value. `expected`: estimated bytes of the texts.

    `print_from` prints the values from a row on. It returns (status, row): DONE, or why it has not printed this row. If the status is ROOM
    (the buffer is full), `print_from` is called again with a larger buffer. For any other failure, `printed` calls `otherwise` with the
    status and the row. `otherwise` returns the row's text, or raises ValueRefusedError.
    """
    offsets = np.zeros(values.count + 1, np.int32)
    text = np.empty(min(ARROW_BYTES_MAX, expected + expected // 2 + SPARE_BYTES), np.uint8)
    status, row = print_from(0, offsets, text)
    while status != DONE:
        if status == statuses.ROOM:
            text = _grown(row, text, int(offsets[row]), 2 * len(text))
        else:
            own, used = otherwise(int(status), int(row)), int(offsets[row])
            text = _grown(row, text, used, max(len(text), used + len(own)))
            text[used : used + len(own)] = np.frombuffer(own, np.uint8)
            row += 1
            offsets[row] = used + len(own)
        status, row = print_from(row, offsets, text)
    return _checked(values, offsets, text[: offsets[-1]])


def _grown(row: int, text: Bytes, used: int, size: int) -> Bytes:
    if size <= len(text):
        return text
    if len(text) == ARROW_BYTES_MAX:
        raise ValueRefusedError(
            row, f"makes the column's text longer than the {ARROW_BYTES_MAX} bytes of an Arrow string array"
        )
    grown = np.empty(min(ARROW_BYTES_MAX, size), np.uint8)
    grown[:used] = text[:used]
    return grown


def _checked(values: Values, offsets: Int32s, text: Bytes) -> AnyArray:
    buffers = [values.validity(), buffer_of(offsets), buffer_of(text)]
    array = pa.Array.from_buffers(pa.string(), values.count, buffers)
    if text.max(initial=0) >= 0x80:
        try:
            array.validate(full=True)
        except pa.ArrowInvalid:
            raise _not_utf8(offsets, text) from None
    return array


def _not_utf8(offsets: Int32s, text: Bytes) -> ValueRefusedError:
    """Returns the error that names the row whose text is not UTF-8. A Python loop over all rows finds the row; the loop runs only after a
    failure.
    """
    for row in range(len(offsets) - 1):
        try:
            text[offsets[row] : offsets[row + 1]].tobytes().decode()
        except UnicodeDecodeError:
            return ValueRefusedError(row, "is not a JSON document of MySQL: a string in the document is not UTF-8")
    return ValueRefusedError(0, "is not a JSON document of MySQL")
