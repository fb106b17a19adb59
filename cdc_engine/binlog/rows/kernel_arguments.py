"""Defines named tuples, which group the arguments of the kernels that find values in row events. `decoder` and the package `entries` make
these tuples.
"""

from __future__ import annotations

from typing import NamedTuple

from sluice.cdc_engine.binlog.compiled import Integer
from sluice.cdc_engine.binlog.located_values import LocatedValues
from sluice.cdc_engine.contracts import Bytes, Int8s, Int32s, Int64s


class RowEvents(NamedTuple):
    """Row events of one table. `buffer` contains the events. The other arrays have one entry per event: its offset and length in `buffer`
    in bytes, its kind (insert, update or delete) and the version of its format.
    """

    buffer: Bytes
    offset: Int64s
    length: Int64s
    kind: Int8s
    version: Int8s


class TableLayout(NamedTuple):
    """How the row images of a table store values, and which values to locate. The arrays have one entry per column of the table, except
    `key`.

    `prefix`: number of length bytes before a value, or 0 if the value has a fixed size. `width`: the fixed size in bytes. `slot`: the index
    of the column in the arrays of LocatedValues, or -1 if the column's values are not located. `key`: slots of the columns that are
    compared in updates, usually the key columns. If an update changes one of these columns, or if `key` is empty, both images of the update
    become rows. Otherwise only its after image becomes a row.
    """

    prefix: Int8s
    width: Int32s
    slot: Int32s
    key: Int32s


class ImageColumns(NamedTuple):
    """Which columns the images of an event have. The arrays have one entry per column of the table. The caller fills only `facts`. The
    kernels fill the other arrays.

    `facts`: the sum of the bits that apply to the column, such as WANTED (it is decoded) and KEY (it is in the key) in locate_partial.py.
    `before`: whether the before image has the column. `after`: whether the after image has the column. `partial`: whether the column's
    value in the after image is a JSON difference.
    """

    facts: Int8s
    before: Int8s
    after: Int8s
    partial: Int8s


class ChunkMemory(NamedTuple):
    """Memory to which kernels write the located rows of one chunk. `values`: arrays of shape (columns, rows). `before`: scratch memory for
    one before image. `operation`, `image_event`: the operation of each row and the index of its row event.

    `differences` (4 by n): the JSON values that are logged as differences: slot and row of the value, and offset and size of the document
    in the before image.
    """

    values: LocatedValues
    before: LocatedValues
    operation: Int8s
    image_event: Int32s
    differences: Int64s


class OpenEvent(NamedTuple):
    """The row event whose images a kernel locates. `end`: the end of the images in `buffer`.

    `column_in_doubt`: -1, unless an update of the event may come from REPLACE, which sets the omitted columns to their defaults. Then it is
    the index of the first column that both images omit, whose new value is therefore unknown.
    """

    buffer: Bytes
    end: Integer
    version: Integer
    column_in_doubt: Integer
