"""Locates the values of row images for entries, and reads the facts of the images' row events.

The kernel `locate_images` differs from `rows.locate`, which locates values for the lake, in two points: an update always yields both
images, and a column that an image omits (binlog_row_image MINIMAL, NOBLOB) has the offset ABSENT.
"""
# ruff: noqa: PLR0917 - numba has no keyword-only arguments

from __future__ import annotations

import dataclasses

import numpy as np

from sluice.cdc_engine.binlog.compiled import Integer, kernel
from sluice.cdc_engine.binlog.located_values import LocatedValues
from sluice.cdc_engine.binlog.rows.kernel_arguments import ImageColumns, RowEvents, TableLayout
from sluice.cdc_engine.binlog.rows.locate import HEADER_BYTES, KIND_DELETE, KIND_INSERT, KIND_UPDATE
from sluice.cdc_engine.binlog.rows.locate_diffs import read_value_options
from sluice.cdc_engine.binlog.rows.locate_partial import first_image_of, locate_present
from sluice.cdc_engine.contracts import Block, Bytes, Int8s, Int32s, Int64s

DONE, FULL, REFUSED = 0, 1, 2
BEFORE, AFTER = 0, 1  # The side of a row image.


@dataclasses.dataclass(frozen=True, eq=False)
class EventFacts:
    """Facts of row events that are needed for their entries, one value per event. `kinds`: insert, update or delete. `offsets`, `lengths`:
    where the event is in the binlog file, in bytes. `ms`: time in milliseconds since 1970. `transactions`: index of the event's transaction
    in the block.
    """

    kinds: Int8s
    offsets: Int64s
    servers: Int64s
    ms: Int64s
    lengths: Int64s
    table_ids: Int64s
    transactions: Int64s

    def split(self, events: Int32s, kinds: Int8s) -> EventFacts:
        """Returns these facts with one value per entry instead of one value per event. `events`: the index of each entry's event. `kinds`:
        the kind of each entry.
        """
        every = {field.name: getattr(self, field.name)[events] for field in dataclasses.fields(self)}
        return EventFacts(**{**every, "kinds": kinds})

    @classmethod
    def of(cls, block: Block, chosen: Int64s) -> EventFacts:
        at = block.event_offset[chosen]
        return cls(
            kinds=np.ascontiguousarray(block.event_kind[chosen], np.int8),
            offsets=np.ascontiguousarray(block.event_position[chosen], np.int64),
            servers=little_endian_at(block.buffer, at + 5, 4),
            ms=little_endian_at(block.buffer, at, 4) * 1000,
            lengths=little_endian_at(block.buffer, at + 9, 4),
            table_ids=little_endian_at(block.buffer, at + 19, 6),
            transactions=np.searchsorted(block.transaction_events, chosen, "right").astype(np.int64),
        )


def little_endian_at(buffer: Bytes, at: Int64s, width: int) -> Int64s:
    found = np.zeros(len(at), np.int64)
    for index in range(width):
        found |= buffer[at + index].astype(np.int64) << (8 * index)
    return found


@dataclasses.dataclass(frozen=True, eq=False)
class Images:
    """The located values of row images (columns by images), and the side and event of each image. `differences` (4 by n): four numbers for
    each JSON value that is logged as a difference. The numbers are the value's column and image, and the offset and size of the document in
    the before image.
    """

    starts: Int64s
    sizes: Int64s
    side: Int8s
    event: Int32s
    differences: Int64s


@kernel
def note_changes(
    partial: Int8s, slot: Int32s, values: LocatedValues, image: Integer, differences: Int64s, found: Integer
) -> Integer:
    """Adds to `differences` each value of an after image that is logged as a JSON difference, with the location of the value's old document
    in the before image. Returns the new number of differences.
    """
    starts, sizes = values
    for column in range(partial.shape[0]):
        wanted = slot[column]
        if partial[column] and wanted >= 0 and starts[wanted, image] >= 0:
            differences[0, found], differences[1, found] = wanted, image
            differences[2, found], differences[3, found] = starts[wanted, image - 1], sizes[wanted, image - 1]
            found += 1
    return found


@kernel
def locate_images(
    events: RowEvents,
    layout: TableLayout,
    columns: ImageColumns,
    cursor: Int64s,
    values: LocatedValues,
    image_side: Int8s,
    image_event: Int32s,
    differences: Int64s,
) -> Integer:
    """Locates the images from `cursor` on. Returns DONE, FULL if an array is full, or REFUSED if bytes are not images. `cursor` has four
    numbers: the index of the event, the offset of the event's next image (0: the event's first image), the number of images so far, and the
    number of differences so far.

    `values`: columns by images. `differences` (4 by n): for each JSON value that is logged as a difference from the document in the before
    image, the index of the value's column in `values`, the index of its image, and the offset and size of that document.
    """
    buffer, event_offset, event_length, event_kind, event_version = events
    facts, before, after, partial = columns
    cells = values.starts.shape[0]
    event, resumed, image = cursor[0], cursor[1], np.int64(0)
    while event < event_offset.shape[0]:
        end, kind, version = event_offset[event] + event_length[event], event_kind[event], event_version[event]
        cursor[0] = event
        if event_offset[event] < 0 or event_length[event] < HEADER_BYTES + 8 or end > buffer.shape[0]:
            return REFUSED
        at = first_image_of(buffer, event_offset[event], end, kind, version, before, after)
        if at < 0:
            return REFUSED
        at = max(at, resumed)
        while at < end:
            if image + 2 > image_event.shape[0] or cursor[3] + cells > differences.shape[1]:
                cursor[1], cursor[2] = at, image
                return FULL
            if kind != KIND_INSERT:
                at = locate_present(buffer, at, end, layout, before, values, image)
                image_side[image], image_event[image] = BEFORE, event
                image += 1
            if at >= 0 and kind == KIND_UPDATE and version == 3:
                at = read_value_options(buffer, at, end, facts, partial)
            if at >= 0 and kind != KIND_DELETE:
                at = locate_present(buffer, at, end, layout, after, values, image)
                image_side[image], image_event[image] = AFTER, event
                if at >= 0 and version == 3:
                    cursor[3] = note_changes(partial, layout.slot, values, image, differences, cursor[3])
                image += 1
            if at < 0:
                return REFUSED
        resumed = 0
        event += 1
    cursor[0], cursor[1], cursor[2] = event, 0, image
    return DONE
