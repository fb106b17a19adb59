"""Decides which records of the schema history apply at a position of the stream. Pure functions; used by `history` and by consumers' own
streams.

Within an epoch, order keys decide. Positions of two epochs are on two servers, or in two numberings of binlog files; there the executed
sets decide, if they are known. A record of a statement, or of rows, has the executed set before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sluice.cdc_engine.gtid import has_executed
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.table_meta.history.kept.repository import HistoryRecord, RecordKind

FROM_ITS_PLACE_ON = frozenset({RecordKind.SERVER, RecordKind.DATABASE, RecordKind.SNAPSHOT})


def holds_at(record: HistoryRecord, place: Position) -> bool:
    """Returns whether a reader that has everything up to a position has passed the record. Raises ValueError if an executed set cannot
    be read.
    """
    at = record.position
    if at.counts_as(place) or not (at.gtid_set and place.gtid_set):
        return at.order_key <= place.order_key
    if not has_executed(place.gtid_set, at.gtid_set):
        return False
    return record.kind in FROM_ITS_PLACE_ON or not has_executed(at.gtid_set, place.gtid_set)


def needed(records: Sequence[HistoryRecord], places: Iterable[Position]) -> list[HistoryRecord]:
    """Returns the records that are needed to continue from one of the positions: those that do not apply there yet and, of the others,
    the last one per table, database and server.
    """
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
