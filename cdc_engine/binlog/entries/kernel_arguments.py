"""Groups the arguments of the kernels that write entries and flat messages.

`rows`, `messages` and `flat` make them."""

from __future__ import annotations

from typing import NamedTuple

from sluice.cdc_engine.contracts import Bytes, Int8s, Int32s, Int64s


class ShownValues(NamedTuple):
    """Values as texts, columns by images. `starts`, `sizes` (NULL, ABSENT): where each value is in `texts`. `high`: whether its sqlType is
    the wider one.
    """

    starts: Int64s
    sizes: Int64s
    high: Int8s
    texts: Bytes


class ShownImages(NamedTuple):
    """Images in the order of their events. Each has a side, the index of its event, and its values."""

    side: Int8s
    event: Int32s
    values: ShownValues


class ColumnFrames(NamedTuple):
    """The constant bytes of each Column message, in `pool`: before the value (columns by 3, by sqlType) and after it (columns)."""

    pool: Bytes
    head_at: Int64s
    heads: Int64s
    tail_at: Int64s
    tails: Int64s


class MeasuredImages(NamedTuple):
    """The bytes of each Column message (`columns`, columns by images; -1: omitted) and of all columns of each image with their keys and
    lengths (`images`). `updated` (columns by images): whether the value differs from that before.
    """

    updated: Int8s
    columns: Int32s
    images: Int64s


class Pieces(NamedTuple):
    """Constant texts. Piece n is `data[starts[n] : starts[n + 1]]`."""

    data: Bytes
    starts: Int64s


class EntryHeaders(NamedTuple):
    """What the headers of entries contain. `names`: the fields schemaName and tableName. The arrays have one value per entry; times are in
    milliseconds. `row_counts` 0: no row count. `gtids`: as in `gtid_marks.GtidMarks`. `marks`: the index of each entry's transaction there;
    -1: none.
    """

    file: Bytes
    names: Bytes
    offsets: Int64s
    servers: Int64s
    ms: Int64s
    lengths: Int64s
    row_counts: Int64s
    gtids: Pieces
    marks: Int64s


class EntrySizes(NamedTuple):
    """The bytes of each event's RowChange, header and entry, and where its entry starts."""

    changes: Int64s
    headers: Int64s
    entries: Int64s
    starts: Int64s


class MessageParts(NamedTuple):
    """What the flat messages of a table have in common. `keys`: which columns are the key; `columns`: the pieces of its columns.

    `frame`: the pieces of a message.
    """

    keys: Int8s
    columns: Pieces
    frame: Pieces


class FlatUnits(NamedTuple):
    """The rows of flat messages, as units. `begins`: the first unit of each message. `kinds`, `images`: each unit's kind and first image.
    `shown`, `ms`: each message's time, and the image that defines its columns and types. `gtids`, `marks`: as in `EntryHeaders`.
    """

    begins: Int64s
    kinds: Int8s
    images: Int64s
    shown: Int64s
    ms: Int64s
    gtids: Pieces
    marks: Int64s
