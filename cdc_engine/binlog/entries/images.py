"""Located images of row events and facts of their events, as arrays from which entries are made. Used by `rows` and `shown_rules`."""

from __future__ import annotations

import dataclasses

import numpy as np

from sluice.cdc_engine.contracts import Block, Bytes, Int8s, Int32s, Int64s


@dataclasses.dataclass(frozen=True, eq=False)
class EventFacts:
    """What the headers of entries contain for row events, one value per event; times in milliseconds."""

    kinds: Int8s
    offsets: Int64s
    servers: Int64s
    ms: Int64s
    lengths: Int64s
    table_ids: Int64s

    def split(self, events: Int32s, kinds: Int8s) -> EventFacts:
        """Returns the facts of entries: those of their events, with their own kinds."""
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
        )


def little_endian_at(buffer: Bytes, at: Int64s, width: int) -> Int64s:
    found = np.zeros(len(at), np.int64)
    for place in range(width):
        found |= buffer[at + place].astype(np.int64) << (8 * place)
    return found


@dataclasses.dataclass(frozen=True, eq=False)
class Images:
    """Located values (columns by images), and each image's side and event."""

    starts: Int64s
    sizes: Int64s
    side: Int8s
    event: Int32s
    differences: Int64s
