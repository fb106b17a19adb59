"""Defines named tuples, which group the arguments of the kernels that write entries and flat messages. `rows`, `messages` and `flat` make
these tuples.
"""

from __future__ import annotations

from typing import NamedTuple

from sluice.cdc_engine.contracts import Bytes, Int8s, Int32s, Int64s


class ShownValues(NamedTuple):
    """The values of row images as texts, back to back in `texts`. The arrays `starts`, `sizes` and `high` have a row per column and an
    entry per image. `starts`, `sizes`: offset and bytes of each text. The size is `assemble.NULL` for NULL, and `assemble.ABSENT` if the
    image omits the column. `high`: whether the value needs the wider of the column's two sqlTypes, for example because it is an unsigned
    integer above the signed range.
    """

    starts: Int64s
    sizes: Int64s
    high: Int8s
    texts: Bytes


class ShownImages(NamedTuple):
    """Row images in the order of their events, each with its side (before or after), the index of its event, and its values."""

    side: Int8s
    event: Int32s
    values: ShownValues


class ColumnFrames(NamedTuple):
    """The constant bytes of each column's Column messages, in `pool`. `head_at`, `heads`: offset and size of the bytes before the value,
    three per column: for the column's usual sqlType, for its wider sqlType and for NULL. `tail_at`, `tails`: offset and size of the bytes
    after the value, one per column.
    """

    pool: Bytes
    head_at: Int64s
    heads: Int64s
    tail_at: Int64s
    tails: Int64s


class MeasuredImages(NamedTuple):
    """The sizes of Column messages. `columns` and `updated` have a row per column and an entry per image. `columns`: bytes of each message,
    or -1 if the image omits the column. `updated`: whether the message marks the value as updated. `images`: bytes of all Column messages
    of an image, each with its protobuf key and length.
    """

    updated: Int8s
    columns: Int32s
    images: Int64s


class Pieces(NamedTuple):
    """Constant texts in one buffer. Piece n is `data[starts[n] : starts[n + 1]]`."""

    data: Bytes
    starts: Int64s


class EntryHeaders(NamedTuple):
    """The values of entries' headers. Each array from `offsets` to `row_counts` has one value per entry.

    `names`: the encoded fields schemaName and tableName. `offsets`, `servers`, `lengths`: offset, server id and length of the binlog event.
    `ms`: times in milliseconds. `row_counts`: 0 for no row count. `gtids`: the GTID texts of transactions (`gtid_marks.GtidMarks.pieces`).
    `marks`: for each entry, the index of its transaction in `gtids`, or -1 if the entry gets no GTID.
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
    """The sizes in bytes of each event's RowChange, header and entry, one value per event. `starts`: the offset of the event's entry."""

    changes: Int64s
    headers: Int64s
    entries: Int64s
    starts: Int64s


class MessageParts(NamedTuple):
    """The constant parts of a table's flat messages. `keys`: per column, whether it belongs to the key. `columns`: five constant texts per
    column: its name, its type and its three sqlType numbers. `frame`: the constant texts between the variable parts of a message.
    """

    keys: Int8s
    columns: Pieces
    frame: Pieces


class FlatUnits(NamedTuple):
    """The rows of flat messages, as units: a unit is an insert, an update or a delete of one row. `kinds` and `images` have one value per
    unit: the kind of change, and the index of the unit's first image. `begins`, `shown` and `ms` have one value per message: the message's
    first unit, the image that defines the message's columns and types, and the message's time in milliseconds. `gtids`: the encoded GTIDs.
    `marks`: the index of each message's GTID in `gtids`.
    """

    begins: Int64s
    kinds: Int8s
    images: Int64s
    shown: Int64s
    ms: Int64s
    gtids: Pieces
    marks: Int64s
