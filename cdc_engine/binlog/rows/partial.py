"""Handles row images that omit columns: fills in defaults, adds columns that say which values are present, and explains why a table stops.
Called by `decoder`.

If the image of an INSERT omits a column, the source has the column's constant default in the row, and the default is filled in. If an image
of an UPDATE or a DELETE omits a column, the row keeps the value that it has in the lake. Batches with such rows have the additional columns
of `partial_schema` after the table's columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.cdc_engine.binlog.column_types import ColumnType
from sluice.cdc_engine.binlog.column_types.entry import AnyArray
from sluice.cdc_engine.binlog.column_types.value_text import scalar_value
from sluice.cdc_engine.binlog.rows import locate_partial as locating
from sluice.cdc_engine.binlog.rows.locate_diffs import DOCUMENT
from sluice.cdc_engine.binlog.type_codes import TypeCode
from sluice.cdc_engine.contracts import Column, Int8s, Int64s, Operation

PRESENT, MOVED, ORIGIN = "_sluice_present_", "_sluice_moved", "_sluice_origin_"
# The table's columns are divided into groups of this size. A column `_sluice_present_<g>` (int64) has one bit for each column of group g,
# which is set if the row image has the column. The sign bit is not used.
GROUP_COLUMNS = 63
LARGE_CODES = {
    TypeCode.BLOB,
    TypeCode.TINY_BLOB,
    TypeCode.MEDIUM_BLOB,
    TypeCode.LONG_BLOB,
    TypeCode.JSON,
    TypeCode.GEOMETRY,
    TypeCode.BLOB_COMPRESSED,
    TypeCode.VECTOR,
}
Mask = np.typing.NDArray[np.bool_]

_REASONS = {
    locating.KEY_ABSENT: "leaves the key column {column} out of its before image",
    locating.VALUE_ABSENT: "leaves the column {column} out, and the table has no primary key by which the lake could keep its value",
    locating.DEFAULT_UNKNOWN: "inserts rows without the column {column}, and the schema history has no constant default for this column",
    locating.GENERATED_ABSENT: (
        "leaves out the column {column}, which is or may be a virtual column: this server leaves virtual columns "
        "out even if their values changed"
    ),
    locating.REPLACE_POSSIBLE: "leaves the column {column} out of both images, and has a key column in the after image: an UPDATE would "
    "keep the value of {column}, a REPLACE would set its default, and this server logs both in the same form",
    locating.DOCUMENT_ABSENT: "has differences of the JSON document in column {column} (binlog_row_value_options=PARTIAL_JSON) and "
    "leaves the document out of the before image",
    locating.ALL_ABSENT: "inserts rows without any column, so their number is not known",
}


def refusal(status: int, column: Column, where: str) -> str:
    """Returns the message for an operator about an event that cannot be decoded. `where`: file and offset of the event."""
    what = _REASONS[status].format(column=column.name)
    return f"the row event at {where} {what}; set binlog_row_image=FULL on the source"


def key_null(column: Column, where: str, *, in_source: bool) -> str:
    """Returns the message about a key column that is NULL in the row event at `where`. `in_source`: whether the source has NULL; otherwise
    the source has a zero or partial date.
    """
    what = f"the key column {column.name} ({column.mysql_type}) is NULL in a row of the event at {where}"
    if in_source:
        return f"{what}, and several rows can have NULL in the key; name columns in `key` that are never NULL"
    return (
        f"{what}: the value is a zero or partial date, which several rows can have; set `zero_dates: text` for "
        "the table"
    )


def facts_of(columns: Sequence[Column], key: Sequence[str], slot: Any) -> Int8s:
    """Returns for each column of a table the sum of the bits that apply to it. WANTED: it is decoded. KEY: it is in the key.
    DEFAULTED: its default is known. VIRTUAL: it is, or may be, virtual. LARGE: binlog_row_image=NOBLOB omits it. DOCUMENT: it is JSON.
    `slot`: one entry per column, -1 if the column is not decoded.
    """
    keyed = {name.lower() for name in key}
    return np.array([_facts(column, slot[index] >= 0, keyed) for index, column in enumerate(columns)], np.int8)


def _facts(column: Column, wanted: bool, key: set[str]) -> int:
    return (
        locating.WANTED * wanted
        + locating.KEY * (column.name.lower() in key)
        + locating.DEFAULTED * bool(column.default)
        + locating.VIRTUAL * (column.generated in {"virtual", "unknown"})
        + locating.LARGE * (column.type_code in LARGE_CODES)
        + DOCUMENT * (column.type_code == TypeCode.JSON)
    )


def absences(starts: Int64s) -> Mask | None:
    """Returns which values the images omit (shape: columns, rows), or None if the images omit no values. Changes the offset of each omitted
    value in `starts` to that of NULL.
    """
    absent: Mask = starts == locating.ABSENT
    if not absent.any():
        return None
    starts[absent] = -1
    return absent


def with_default(array: AnyArray, chosen: Mask, text: str | None, each: ColumnType) -> AnyArray:
    """Returns `array` with the default value `text` in the rows `chosen`. If `text` is None, the default is NULL, which these rows have
    already. Raises ValueError if `text` is not a value of the type `each`.
    """
    if text is None:
        return array
    filled: AnyArray = pc.if_else(pa.array(chosen), scalar_value(text, each), array)
    return filled


def partial_schema(schema: pa.Schema) -> pa.Schema:
    """Returns `schema` (Sluice's three columns, then the table's columns) with the columns for partial images appended.

    `_sluice_present_<g>` (int64): bit b is set if the image has column 63 * g + b of the table. `_sluice_moved` (bool): whether the row is
    the after image of an update that changes the key and omits columns. The previous row is the before image of this update.
    """
    groups = -(-(len(schema) - 3) // GROUP_COLUMNS)
    ours = [pa.field(f"{PRESENT}{group}", pa.int64(), False) for group in range(groups)]
    return pa.schema([*schema, *ours, pa.field(MOVED, pa.bool_(), False)])


def key_fields(schema: pa.Schema, key: tuple[str, ...]) -> list[pa.Field[Any]]:
    """Returns the fields of the columns `key` in a schema. The case of column names does not matter."""
    names = {field.name.lower(): field for field in schema}
    return [names[name.lower()] for name in key]


def with_presence(batch: pa.RecordBatch, absent: Mask | None = None) -> pa.RecordBatch:
    """Returns the batch with the additional columns of `partial_schema`. `absent`: which values the images omit (shape: columns, rows);
    None means that no value is omitted.
    """
    schema = partial_schema(batch.schema)
    rows = batch.num_rows
    if absent is None:
        absent = np.zeros((len(batch.schema) - 3, rows), bool)
    moved = np.zeros(rows, bool)
    moved[1:] = np.diff(batch.column(0).to_numpy()) == Operation.UPDATE_AFTER - Operation.UPDATE_BEFORE
    moved &= absent.any(axis=0) & (batch.column(0).to_numpy() == Operation.UPDATE_AFTER)
    words = [pa.array(_word(absent[at : at + GROUP_COLUMNS])) for at in range(0, len(absent), GROUP_COLUMNS)]
    return pa.RecordBatch.from_arrays([*batch.columns, *words, pa.array(moved)], schema=schema)


def _word(absent: Mask) -> Int64s:
    word = np.zeros(absent.shape[1], np.int64)
    for bit, column in enumerate(absent):
        word |= (~column).astype(np.int64) << bit
    return word
