"""Groups the arguments of the kernels that find values in row events. `decoder` and `entries` make them."""

from __future__ import annotations

from typing import NamedTuple

from sluice.cdc_engine.binlog.compiled import Integer
from sluice.cdc_engine.binlog.located_values import LocatedValues
from sluice.cdc_engine.contracts import Bytes, Int8s, Int32s, Int64s


class RowEvents(NamedTuple):
    """The row events of one table in a buffer, one entry per event."""

    buffer: Bytes
    offset: Int64s
    length: Int64s
    kind: Int8s
    version: Int8s


class TableLayout(NamedTuple):
    """How to step over the values of a table, one entry per column, and which values to locate.

    `prefix`: length bytes before a value; `width`: its fixed size. `slot`: the row of the located values that receives the value, -1 to
    skip it. `key`: slots of the key columns; empty for a table without a key.
    """

    prefix: Int8s
    width: Int32s
    slot: Int32s
    key: Int32s


class ImageColumns(NamedTuple):
    """Which columns the images of an event have, one entry per column. `facts`: of the table's columns; the others are scratch memory.

    `before`, `after`: columns that the image has; `partial`: columns whose value is a JSON difference.
    """

    facts: Int8s
    before: Int8s
    after: Int8s
    partial: Int8s


class ChunkMemory(NamedTuple):
    """Memory for the located rows of one chunk. `values`: columns by rows; `before`: scratch memory for one before image.

    `operation`, `image_event`: one entry per row. `differences` (4 by at least the number of columns): see `locate_diffs`.
    """

    values: LocatedValues
    before: LocatedValues
    operation: Int8s
    image_event: Int32s
    differences: Int64s


class OpenEvent(NamedTuple):
    """The event whose images are being located. `doubted`: an update that leaves the key unchanged may be a REPLACE."""

    buffer: Bytes
    end: Integer
    version: Integer
    doubted: bool
