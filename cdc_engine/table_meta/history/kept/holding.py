"""Decides which records of the schema history apply at a position of the stream. Pure functions; used by `history` and by consumers' own
streams.

Within an epoch, order keys decide. Positions of two epochs are on two servers, or the binlog files were numbered again; then executed sets
decide, if they are known. The position of a record of a statement, or of rows, has the executed set before it.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence

from sluice.cdc_engine.gtid import has_executed
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.table_meta.history.kept.repository import HistoryRecord, RecordKind

# The kind of object (empty for a table or a database), database, table.
RecordSubject = tuple[str, str, str]
FROM_ITS_POSITION_ON = frozenset(
    {
        RecordKind.SERVER,
        RecordKind.DATABASE,
        RecordKind.SNAPSHOT,
        RecordKind.UNKNOWN,
        RecordKind.OBJECTS,
        RecordKind.OBJECT,
    }
)


def holds_at(record: HistoryRecord, position: Position) -> bool:
    """Returns whether the record applies to a reader at `position`, which has read everything before. Raises ValueError if an executed set
    cannot be parsed.
    """
    at = record.position
    if at.counts_as(position) or not (at.gtid_set and position.gtid_set):
        return at.order_key <= position.order_key
    if not has_executed(position.gtid_set, at.gtid_set):
        return False
    return record.kind in FROM_ITS_POSITION_ON or not has_executed(at.gtid_set, position.gtid_set)


def needed(records: Sequence[HistoryRecord], positions: Iterable[Position]) -> list[HistoryRecord]:
    """Returns the records that are needed to continue from one of the positions: records that do not apply at it yet, and the last record
    per subject that applies.
    """
    comparable, others = _by_numbering(records, positions)
    kept: set[int] = set()
    for keys in comparable:
        kept |= _needed_in_order(records, keys)
    for position in others:
        last: dict[RecordSubject, int] = {}
        for index, record in enumerate(records):
            if holds_at(record, position):
                last[subject_of(record)] = index
            else:
                kept.add(index)
        kept.update(last.values())
    return [record for index, record in enumerate(records) if index in kept]


def _by_numbering(
    records: Sequence[HistoryRecord], positions: Iterable[Position]
) -> tuple[list[list[int]], list[Position]]:
    """Groups positions with comparable order keys into ascending sequences. Also returns the positions that must be compared with each
    record.

    Within a group, order keys decide about all records: each record is in the same numbering of binlog files, or has no executed set.
    """
    groups: dict[tuple[int, str], dict[int, Position]] = {}
    for position in positions:
        groups.setdefault((position.epoch, position.server_uuid), {})[position.order_key] = position
    numberings = {
        (each.position.epoch, each.position.server_uuid): each.position for each in records if each.position.gtid_set
    }
    comparable, others = list[list[int]](), list[Position]()
    for found in groups.values():
        one = next(iter(found.values()))
        if all(each.counts_as(one) for each in numberings.values()):
            comparable.append(sorted(found))
        else:
            others += found.values()
    return comparable, others


def _needed_in_order(records: Sequence[HistoryRecord], keys: Sequence[int]) -> set[int]:
    """Returns the indexes of the records that are needed at one of the order keys, which are in ascending order.

    A record is needed at the keys before its own order key, and at later keys until a later record of the same subject applies.
    """
    kept: set[int] = set()
    replaced: dict[RecordSubject, int] = {}  # Subject → the first index in `keys` at which a later record applies.
    for index in range(len(records) - 1, -1, -1):
        subject = subject_of(records[index])
        applies = bisect.bisect_left(keys, records[index].position.order_key)
        until = replaced.get(subject, len(keys))
        if applies > 0 or applies < until:
            kept.add(index)
        replaced[subject] = min(applies, until)
    return kept


def subject_of(record: HistoryRecord) -> RecordSubject:
    """Returns the subject of a record. A later record with the same subject replaces it."""
    if record.kind in {RecordKind.SERVER, RecordKind.OBJECTS}:
        return record.kind.value, "", ""
    what = str(record.content["what"]) if record.kind is RecordKind.OBJECT else ""
    return what, record.database, record.table
