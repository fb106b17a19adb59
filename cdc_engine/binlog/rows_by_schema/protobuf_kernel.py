"""Numba kernels that encode rows as Protobuf messages. The input is the text of each value, as Canal clients get it. Called by
`protobuf_rows`.

The encoded bytes equal the bytes that Google's library writes: fields are in the order of their numbers, and fields with default values are
omitted.
"""
# ruff: noqa: PLR0917, PLR1714, SIM109 - numba has no keyword-only arguments; it compiles comparisons, and cannot compile a test in a set

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np

from sluice.cdc_engine.binlog.compiled import Integer, kernel
from sluice.cdc_engine.binlog.entries.assemble import ABSENT
from sluice.cdc_engine.binlog.entries.flat_json import put_piece
from sluice.cdc_engine.binlog.entries.kernel_arguments import Pieces
from sluice.cdc_engine.binlog.entries.protobuf import put_bytes
from sluice.cdc_engine.binlog.rows.locate import KIND_DELETE, KIND_INSERT, KIND_UPDATE
from sluice.cdc_engine.binlog.rows_by_schema.kernel import (
    BYTES,
    DATE,
    DATETIME,
    DECIMAL,
    DOUBLE,
    FILE,
    FLOAT,
    KEY_HEAD,
    NO_MOMENT,
    NOW,
    OPS,
    STRING,
    TABLE,
    TIME,
    TIMESTAMP,
    VALUE_HEAD,
    RowColumns,
    RowUnits,
    SchemaValues,
    image_of,
    iso_size,
    number_of,
    put_bits,
    put_iso,
    put_long,
    put_unsigned,
)
from sluice.cdc_engine.contracts import Bytes, Int64s

# The number of bytes reserved for the length of a nested message until the message is written and its length is known.
LENGTH_BYTES = 5
# Keys of the fields of the messages Envelope and Source: field number << 3 | wire type.
BEFORE, AFTER, SOURCE, OP, OMITTED, OMITTED_BEFORE = 0x0A, 0x12, 0x1A, 0x22, 0x32, 0x3A
POS, TS_MS, SERVER_ID = 0x10, 0x20, 0x28


class RowFields(NamedTuple):
    """The Protobuf fields of a table's columns. `order`: the indices of the columns, in the order of their field numbers. `keys`: for each
    column, the encoded key (number and wire type) of its field.
    """

    order: Int64s
    keys: Pieces


@kernel
def put_value(
    out: Bytes, at: Integer, columns: RowColumns, column: Integer, image: Integer, keys: Pieces, values: SchemaValues
) -> Integer:
    """Writes the field of a column with the value in an image. Writes nothing for NULL and for an invalid date such as 0000-00-00. Returns
    the offset after the field.
    """
    starts, sizes, _, texts = values.shown
    size, first = sizes[column, image], starts[column, image]
    if size < 0:
        return at
    kind, end, begin = columns.kinds[column], first + size, at
    at = put_piece(out, at, keys, column, True)
    if kind == STRING or kind == DECIMAL:
        return put_bytes(out, put_unsigned(out, at, size), texts, first, size)
    if kind == BYTES:
        return put_iso(out, put_unsigned(out, at, iso_size(texts, first, end)), texts, first, end)
    if kind == FLOAT or kind == DOUBLE:
        return put_bits(out, at, values.bits[columns.bits[column], image], 4 if kind == FLOAT else 8)
    number = number_of(kind, texts, first, end)
    if kind == DATE or kind == DATETIME or kind == TIMESTAMP:
        if number == NO_MOMENT:
            return begin
        return put_long(out, at, number) if kind == DATE else put_bits(out, at, number, 8)
    return put_long(out, at, number) if kind == TIME else put_unsigned(out, at, number)


@kernel
def put_row(
    out: Bytes,
    at: Integer,
    columns: RowColumns,
    fields: RowFields,
    image: Integer,
    other: Integer,
    values: SchemaValues,
) -> Integer:
    for column in fields.order:
        own = image_of(values.shown.sizes, column, image, other)
        at = put_value(out, at, columns, column, own, fields.keys, values)
    return at


@nb.njit(inline="always")
def put_length(out: Bytes, at: Integer, end: Integer) -> Integer:
    """Writes the length of a nested message at `at`, and moves the message directly after the length. Before the call, the message is in
    `out` from `at` + LENGTH_BYTES to `end`. Returns the new end of the message.
    """
    size = end - at - LENGTH_BYTES
    return put_bytes(out, put_unsigned(out, at, size), out, at + LENGTH_BYTES, size)


@nb.njit(inline="always")
def put_number(out: Bytes, at: Integer, key: Integer, value: Integer) -> Integer:
    """Writes an integer field, or nothing for the default value 0. Returns the offset after the field."""
    if value == 0:
        return at
    out[at] = key
    return put_unsigned(out, at + 1, value)


@kernel
def put_source(out: Bytes, at: Integer, units: RowUnits, unit: Integer, frame: Pieces) -> Integer:
    out[at] = SOURCE
    end = put_piece(out, at + 1 + LENGTH_BYTES, frame, FILE, True)
    end = put_number(out, end, POS, units.offsets[unit])
    end = put_piece(out, end, units.gtids, units.marks[unit], True)
    end = put_number(out, end, TS_MS, units.ms[unit])
    end = put_number(out, end, SERVER_ID, units.servers[unit])
    return put_length(out, at + 1, put_piece(out, end, frame, TABLE, True))


@kernel
def put_omitted(
    out: Bytes, at: Integer, key: Integer, columns: RowColumns, image: Integer, other: Integer, sizes: Int64s
) -> Integer:
    """Writes the names of the columns that both `image` and `other` omit, as a repeated field with the field key `key`. Returns the offset
    after the names.
    """
    for column in range(sizes.shape[0]):
        if sizes[column, image_of(sizes, column, image, other)] == ABSENT:
            out[at] = key
            at = put_piece(out, at + 1, columns.names, column, True)
    return at


@kernel
def put_messages(
    out: Bytes,
    units: RowUnits,
    columns: RowColumns,
    fields: tuple[RowFields, RowFields],
    values: SchemaValues,
    frame: Pieces,
    ends: tuple[Int64s, Int64s],
) -> None:
    """Writes the key and the value of each message to `out`. `fields`: the fields of the columns in the key's schema, and the fields of the
    columns in the value's schema. `frame`: the encoded parts that are the same in all messages: header of the key, header of the value,
    binlog file, table and ts_ms. `ends`: two arrays, to which the kernel writes the ends of the keys and of the values.
    """
    of_key, of_value = fields
    at, sizes = np.int64(0), values.shown.sizes
    has_key = frame.starts[KEY_HEAD + 1] > frame.starts[KEY_HEAD]
    for unit in range(units.kinds.shape[0]):
        kind, before = units.kinds[unit], units.images[unit]
        after = before + (kind == KIND_UPDATE)
        if has_key:
            at = put_piece(out, at, frame, KEY_HEAD, True)
            at = put_row(out, at, columns, of_key, after, before, values)
        ends[0][unit] = at
        at = put_piece(out, at, frame, VALUE_HEAD, True)
        if kind != KIND_INSERT:
            out[at] = BEFORE
            end = put_row(out, at + 1 + LENGTH_BYTES, columns, of_value, before, before, values)
            at = put_length(out, at + 1, end)
        if kind != KIND_DELETE:
            out[at] = AFTER
            end = put_row(out, at + 1 + LENGTH_BYTES, columns, of_value, after, before, values)
            at = put_length(out, at + 1, end)
        at = put_source(out, at, units, unit, frame)
        out[at], out[at + 1], out[at + 2] = OP, 1, OPS[kind - KIND_INSERT]
        at = put_piece(out, at + 3, frame, NOW, True)
        at = put_omitted(out, at, OMITTED, columns, after, before, sizes)
        if kind != KIND_INSERT:
            at = put_omitted(out, at, OMITTED_BEFORE, columns, before, before, sizes)
        ends[1][unit] = at
