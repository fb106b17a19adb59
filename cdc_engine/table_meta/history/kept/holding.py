"""Which records of the schema history hold at a place in the stream. Pure; asked by `history` and by streams that consumers read alone.

Order keys tell, within an epoch. Places of two epochs are on two servers, or in two numberings: there it is what was executed that
tells, where that is known. A record of a statement, or of rows, has the set of what was executed before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cdc_engine.gtid import has_executed
from cdc_engine.position import Position
from cdc_engine.table_meta.history.kept.repository import Record, RecordKind

FROM_ITS_PLACE_ON = frozenset({RecordKind.SERVER, RecordKind.DATABASE, RecordKind.SNAPSHOT})


def holds_at(record: Record, place: Position) -> bool:
    """Whether what the record tells had come to pass for who has all up to a place. Raises ValueError where a set cannot be read."""
    at = record.position
    if at.counts_as(place) or not (at.gtid_set and place.gtid_set):
        return at.order_key <= place.order_key
    if not has_executed(place.gtid_set, at.gtid_set):
        return False
    return record.kind in FROM_ITS_PLACE_ON or not has_executed(at.gtid_set, place.gtid_set)


def needed(records: Sequence[Record], places: Iterable[Position]) -> list[Record]:
    """Those that anyone needs who goes on from one of the places: what does not hold there yet, and of the rest the last of its kind."""
    kept: set[int] = set()
    for place in places:
        last: dict[tuple[bool, str, str], int] = {}
        for index, record in enumerate(records):
            if holds_at(record, place):
                last[record.kind is RecordKind.SERVER, record.database, record.table] = index
            else:
                kept.add(index)
        kept.update(last.values())
    return [record for index, record in enumerate(records) if index in kept]
