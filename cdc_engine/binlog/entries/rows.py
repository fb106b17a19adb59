"""Converts row events of one table version to entries (protobuf bytes). Called by `messages`.

First the values of each column are converted to texts. Then one kernel call writes the entries.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.cdc_engine.binlog.column_types import TypeUnsupportedError, ValueRefusedError, Values
from sluice.cdc_engine.binlog.entries import assemble
from sluice.cdc_engine.binlog.entries import locate as entries_locate
from sluice.cdc_engine.binlog.entries.gtid_marks import NO_MARKS, GtidMarks
from sluice.cdc_engine.binlog.entries.kernel_arguments import (
    ColumnFrames,
    EntryHeaders,
    EntrySizes,
    MeasuredImages,
    ShownImages,
    ShownValues,
)
from sluice.cdc_engine.binlog.entries.locate import EventFacts, Images
from sluice.cdc_engine.binlog.entries.shown_rules import ShownRules
from sluice.cdc_engine.binlog.entries.texts import ColumnTexts, Display, TextValues, column_texts
from sluice.cdc_engine.binlog.located_values import LocatedValues
from sluice.cdc_engine.binlog.protobuf_fields import bytes_field, encoded_varint, number_field
from sluice.cdc_engine.binlog.row_rules.history_rows import HIDDEN
from sluice.cdc_engine.binlog.rows import diffs as rows_diffs
from sluice.cdc_engine.binlog.rows.decoder import row_events
from sluice.cdc_engine.binlog.rows.kernel_arguments import ImageColumns, TableLayout
from sluice.cdc_engine.binlog.rows.locate import KIND_UPDATE
from sluice.cdc_engine.binlog.rows.locate_diffs import DIFFERENCE_ROWS, DOCUMENT
from sluice.cdc_engine.binlog.rows.refused_values import DEFAULT_POLICY, ValuePolicy
from sluice.cdc_engine.binlog.type_codes import TypeCode
from sluice.cdc_engine.contracts import Block, Bytes, Column, Int8s, Int32s, Int64s, TableVersion
from sluice.cdc_engine.errors import BinlogFormatError, ConsumerStoppedError

# The maximum number of bytes of row events that are converted at once. A larger row event is converted alone.
CHUNK_BYTES_MAX = 1 << 20
IMAGES_MIN = 1 << 12
KeptColumns = Callable[[TableVersion], Int32s]


@dataclasses.dataclass(frozen=True, eq=False)
class Entries:
    """Serialized entries. `starts`, `sizes`: the range of each entry in `data`. `events`: for row events, the index of each entry's event
    among the requested events. With a row filter, an event may have no entry or several.
    """

    data: Bytes
    starts: Int64s
    sizes: Int64s
    events: Int64s = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))


@dataclasses.dataclass(frozen=True, eq=False)
class ShownRows:
    """The row images that a consumer gets of some row events, with the values as texts.

    `facts` and `events` have one value per entry; `events` is the index of the entry's row event among the requested events. `side` (BEFORE
    or AFTER) and `event` have one value per image; `event` is the index of the image's entry. `starts`, `sizes` and `high` have a row per
    column and one value per image: the offset and size of the text in `texts`, and whether the value needs the wider of the column's two
    sqlTypes, for example because it is an unsigned integer above the signed range.
    """

    facts: EventFacts
    events: Int64s
    side: Int8s
    event: Int32s
    starts: Int64s
    sizes: Int64s
    high: Int8s
    texts: Bytes

    @property
    def values(self) -> ShownValues:
        """Returns the values as an argument for kernels."""
        return ShownValues(self.starts, self.sizes, self.high, self.texts)

    @property
    def images(self) -> ShownImages:
        """Returns the images as an argument for kernels."""
        return ShownImages(self.side, self.event, self.values)

    @property
    def row_counts(self) -> Int64s:
        """Returns the number of rows of each entry. The two images of an update are one row."""
        rows = (self.facts.kinds[self.event] != KIND_UPDATE) | (self.side != entries_locate.BEFORE)
        return np.bincount(self.event[rows], minlength=len(self.facts.kinds)).astype(np.int64)


class TableEntries:
    """Makes the entries of one table version. Raises ConsumerStoppedError if a column's type cannot be decoded, if a filter or mask does
    not fit the table, or if conf/ transforms the table's rows.

    `kept`: returns the indices of the captured columns; None means all columns. `key`: the key that conf/ declares, or empty for the
    table's own key.
    """

    def __init__(
        self,
        version: TableVersion,
        display: Display,
        policy: ValuePolicy = DEFAULT_POLICY,
        kept: KeptColumns | None = None,
        key: tuple[str, ...] = (),
    ) -> None:
        self.version, self._policy = version, policy
        try:
            every = [column_texts(column, display) for column in version.columns]
        except TypeUnsupportedError as error:
            raise ConsumerStoppedError(f"the rows of {version.name} cannot be sent to consumers: {error}") from None
        keyed = dataclasses.replace(version, key=key or version.key)
        self.key = keyed.key
        there = [index for index, column in enumerate(version.columns) if column.generated not in HIDDEN]
        wanted = set(there if kept is None else kept(keyed).tolist())
        shown = [index for index in there if index in wanted]
        ordinals = [ordinal for ordinal, index in enumerate(there) if index in wanted]
        self.columns = [version.columns[index] for index in shown]
        self.texts = [every[index] for index in shown]
        slot = np.full(len(every), -1, np.int32)
        slot[shown] = np.arange(len(shown), dtype=np.int32)
        self._layout = TableLayout(
            np.array([each.prefix_bytes for each in every], np.int8),
            np.array([each.width for each in every], np.int32),
            slot,
            np.zeros(0, np.int32),
        )
        self._facts = np.array([DOCUMENT * (c.type_code == TypeCode.JSON) for c in version.columns], np.int8)
        self._names = np.frombuffer(
            bytes_field(8, version.database.encode()) + bytes_field(9, version.table.encode()), np.uint8
        )
        self._rules = ShownRules(keyed, self.columns, policy) if policy.rules else None
        if self._rules is not None:
            self.columns, self.texts = self._rules.columns, self._rules.texts(self.texts)
        self._frame = _column_frames(ordinals, self.columns, self.texts, version.key)

    def entries(self, block: Block, chosen: Int64s, file: Bytes, marks: GtidMarks = NO_MARKS) -> Iterator[Entries]:
        """Yields the entries of the row events `chosen` (ascending indices in the block). Converts events of at most CHUNK_BYTES_MAX bytes
        at a time, or one larger event.
        """
        for shown in self.shown(block, chosen):
            yield self.written(shown, file, shown.row_counts, marks)

    def shown(self, block: Block, chosen: Int64s) -> Iterator[ShownRows]:
        """Yields the images of the row events `chosen` (ascending indices in the block). Converts events of at most CHUNK_BYTES_MAX bytes
        at a time, or one larger event. Skips events whose rows are all filtered out.
        """
        lengths = np.cumsum(block.event_length[chosen])
        first = 0
        while first < len(chosen):
            done = int(lengths[first - 1]) if first else 0
            last = max(first + 1, int(np.searchsorted(lengths, done + CHUNK_BYTES_MAX, "right")))
            some = self._some(block, chosen[first:last], first)
            if some is not None:
                yield some
            first = last

    def _some(self, block: Block, chosen: Int64s, first: int) -> ShownRows | None:
        images, facts = self._located(block, chosen), EventFacts.of(block, chosen)
        own = np.arange(len(chosen))
        if self._rules is not None:
            images, facts, own = self._rules.left(block, chosen, images, facts)
        if not len(own):
            return None
        texts = [self._texts_of(block, slot, images) for slot in range(len(self.columns))]
        if self._rules is not None:
            texts = self._rules.masked(texts)
        return ShownRows(facts, own + first, images.side, images.event, *_together(texts, images))

    def written(self, shown: ShownRows, file: Bytes, row_counts: Int64s, marks: GtidMarks = NO_MARKS) -> Entries:
        """Returns the entries of `shown`. `row_counts`: the number of rows that each entry's header states; with 0, the header states no
        number. `marks`: the GTIDs of the rows' transactions.
        """
        facts, images, shape = shown.facts, shown.images, shown.sizes.shape
        measured = MeasuredImages(
            np.zeros(shape, np.int8), np.empty(shape, np.int32), np.empty(len(shown.event), np.int64)
        )
        assemble.measure_images(images, self._frame, measured)
        own = marks.indices(facts.transactions)
        headers = EntryHeaders(
            file, self._names, facts.offsets, facts.servers, facts.ms, facts.lengths, row_counts, marks.pieces, own
        )
        sizes = EntrySizes(*(np.empty(len(facts.kinds), np.int64) for _ in range(4)))
        total = assemble.measure_events(facts.kinds, facts.table_ids, headers, images, measured.images, sizes)
        out = np.empty(int(total), np.uint8)
        assemble.put_events(out, facts.kinds, facts.table_ids, headers, images, self._frame, measured, sizes)
        return Entries(out, sizes.starts, sizes.entries, shown.events)

    def _located(self, block: Block, chosen: Int64s) -> Images:
        room, events = IMAGES_MIN, row_events(block, chosen)
        while True:
            columns = len(self.columns)
            starts, sizes = np.empty((columns, room), np.int64), np.empty((columns, room), np.int64)
            side, event = np.empty(room, np.int8), np.empty(room, np.int32)
            differences = np.empty((DIFFERENCE_ROWS, room + columns), np.int64)
            cursor = np.zeros(4, np.int64)
            scratch = (np.zeros(len(self._facts), np.int8) for _ in range(3))
            status = entries_locate.locate_images(
                events, self._layout, ImageColumns(self._facts, *scratch), cursor, LocatedValues(starts, sizes), side, event, differences
            )  # fmt: skip
            if status == entries_locate.DONE:
                count = int(cursor[2])
                return Images(
                    starts[:, :count], sizes[:, :count], side[:count], event[:count], differences[:, : cursor[3]]
                )
            if status == entries_locate.REFUSED:
                offset = int(block.event_position[chosen[int(cursor[0])]])
                raise BinlogFormatError(f"a row event of table {self.version.name} cannot be read", block.file, offset)
            room *= 4

    def _texts_of(self, block: Block, slot: int, images: Images) -> TextValues:
        starts = images.starts[slot]
        present = Values(block.buffer, np.ascontiguousarray(starts), np.ascontiguousarray(images.sizes[slot]))
        if (starts == assemble.ABSENT).any():
            present = Values(block.buffer, np.maximum(starts, -1), present.sizes)
        own = rows_diffs.of_column(images.differences, slot)
        try:
            if not own.shape[1]:
                return self.texts[slot].finish(present)
            documents = rows_diffs.documents(present, own)
            others = self.texts[slot].finish(rows_diffs.without(present, own))
        except ValueRefusedError as error:
            column = self.columns[slot]
            why = self._policy.rules.shown_reason(column.name, error.reason)
            raise ConsumerStoppedError(
                f"a value of column {column.name} ({column.mysql_type}) of {self.version.name} in {block.file} {why}"
            ) from None
        return TextValues(rows_diffs.joined(others.array, own, documents))


def _together(shown: list[TextValues], images: Images) -> tuple[Int64s, Int64s, Int8s, Bytes]:
    """Concatenates the texts of all columns. Returns (starts, sizes, high, texts), the last four fields of `ShownRows`."""
    starts, sizes = np.empty_like(images.starts, order="C"), np.empty_like(images.sizes, order="C")
    high, parts, used = np.zeros(sizes.shape, np.int8), [np.zeros(1, np.uint8)], 1
    for slot, each in enumerate(shown):
        offsets, data = _buffers(each.array)
        starts[slot] = offsets[:-1] + used
        sizes[slot] = np.diff(offsets)
        sizes[slot][images.starts[slot] < 0] = images.starts[slot][images.starts[slot] < 0]
        if each.high is not None:
            high[slot] = each.high
        parts.append(data)
        used += len(data)
    return starts, sizes, high, np.concatenate(parts)


def _buffers(array: Any) -> tuple[Int64s, Bytes]:
    """Returns (offsets, bytes) of an Arrow array or chunked array of strings. The first offset is 0."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    wide = pa.types.is_large_string(array.type)
    _, offset_buffer, data = array.buffers()
    kind: Any = np.int64 if wide else np.int32
    offsets = np.frombuffer(offset_buffer, kind, len(array) + 1 + array.offset)[array.offset :].astype(np.int64)
    read = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)
    return offsets - offsets[0], read[offsets[0] : offsets[-1]]


def _column_frames(
    ordinals: list[int], columns: list[Column], texts: list[ColumnTexts], key: tuple[str, ...]
) -> ColumnFrames:
    """Returns the constant bytes of each column's Column messages. `ordinals`: each column's index in the whole table."""
    keys = {name.lower() for name in key}
    pieces: list[bytes] = []
    for index, column, each in zip(ordinals, columns, texts, strict=True):
        for kind in (each.sql_type, each.of_high, each.of_null):
            head = number_field(1, index) + number_field(2, kind) + bytes_field(3, column.name.encode())
            pieces.append(head + (b"\x20\x01" if column.name.lower() in keys else b""))
        text = column.mysql_type.encode()
        pieces.append(b"\x52" + encoded_varint(len(text)) + text if text else b"")
    sizes = np.array([len(piece) for piece in pieces], np.int64).reshape(-1, 4)
    ends = np.cumsum(sizes.reshape(-1)).reshape(-1, 4)
    starts = ends - sizes
    pool = np.frombuffer(b"".join(pieces) or b"\0", np.uint8)
    split = (starts[:, :3], sizes[:, :3], starts[:, 3], sizes[:, 3])
    return ColumnFrames(pool, *(np.ascontiguousarray(each) for each in split))
