"""Named tuples that group the arguments of the kernels that find values in row events. `decoder` and `entries` make them."""

from __future__ import annotations

from typing import NamedTuple

from sluice.cdc_engine.binlog.compiled import Integer
from sluice.cdc_engine.binlog.located_values import LocatedValues
from sluice.cdc_engine.contracts import Bytes, Int8s, Int32s, Int64s


class RowEvents(NamedTuple):
    """Row events of one table. `buffer`: contains the events. The arrays have one entry per event."""

    buffer: Bytes
    offset: Int64s
    length: Int64s
    kind: Int8s
    version: Int8s


class TableLayout(NamedTuple):
    """How a table's row images store values, and which values to locate. The arrays have one entry per column, except `key`.

    `prefix`: number of length bytes before a value. `width`: bytes of a value without a length. `slot`: the index of the column in the
    located values, or -1 to skip it. `key`: slots of the key columns; empty for a table without a key.
    """

    prefix: Int8s
    width: Int32s
    slot: Int32s
    key: Int32s


class ImageColumns(NamedTuple):
    """Which columns the images of an event have, one entry per column. The caller fills only `facts` (bits, see `locate_partial`); the
    kernels fill the other arrays.

    `before`, `after`: whether the image has the column. `partial`: whether the column's value is a JSON difference.
    """

    facts: Int8s
    before: Int8s
    after: Int8s
    partial: Int8s


class ChunkMemory(NamedTuple):
    """Memory for the located rows of one chunk. `values`: columns by rows. `before`: scratch memory for one before image. `operation`,
    `image_event`: operation and event index, one entry per row.

    `differences` (4 by at least the number of columns): see `locate_diffs`.
    """

    values: LocatedValues
    before: LocatedValues
    operation: Int8s
    image_event: Int32s
    differences: Int64s


class OpenEvent(NamedTuple):
    """The event whose images a kernel locates. `end`: end of its images. `doubted`: whether an update without a key change may be a
    REPLACE.
    """

    buffer: Bytes
    end: Integer
    version: Integer
    doubted: bool
