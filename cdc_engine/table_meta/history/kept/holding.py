"""Decides which records of the schema history apply at a position of the stream. Pure functions.

Within an epoch, order keys decide. Between two epochs, order keys are not reliable, because the binlog belongs to another server, or its
files were numbered again. Then the executed sets of the record and of the position decide. If one of them is unknown, order keys decide.

The executed set in the record of a statement or a table map does not include the transaction of the statement or table map. So this record
applies only if the executed set of the position has more transactions than the set in the record.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence

from sluice.cdc_engine.gtid import has_executed
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.table_meta.history.kept.repository import HistoryRecord, RecordKind

# (kind, database, table). The kind is empty for a table or a database. Otherwise it is TRIGGER, VIEW, or the kind of a record about the
# server.
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
    """Returns whether a record of the schema history applies to a stream that has read everything before `position`. Raises ValueError if
    an executed set cannot be parsed.
    """
    at = record.position
    if at.counts_as(position) or not (at.gtid_set and position.gtid_set):
        return at.order_key <= position.order_key
    if not has_executed(position.gtid_set, at.gtid_set):
        return False
    return record.kind in FROM_ITS_POSITION_ON or not has_executed(at.gtid_set, position.gtid_set)


def needed(records: Sequence[HistoryRecord], positions: Iterable[Position]) -> list[HistoryRecord]:
    """Returns the records of the schema history that must be kept, so that the stream can continue from each of `positions`. For one
    position, these are all records that do not apply yet at this position and, for each subject, the last record that applies at it.
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
    """Groups the positions whose order keys can be compared. Returns the order keys of each group in ascending order, and the remaining
    positions, which must be compared with each record by executed sets.

    A group contains only positions whose order keys can be compared with the order keys of all records: each record is from the same
    binlog files as the positions, or has no executed set.
    """
    groups: dict[tuple[int, str], dict[tuple[int, str], Position]] = {}
    for position in positions:
        # Two positions with the same order key may differ in their executed sets, because one of the sets may be unknown. Both are kept.
        group = groups.setdefault((position.epoch, position.server_uuid), {})
        group[position.order_key, position.gtid_set] = position
    numberings = {
        (each.position.epoch, each.position.server_uuid): each.position for each in records if each.position.gtid_set
    }
    comparable, others = list[list[int]](), list[Position]()
    for found in groups.values():
        one = next(iter(found.values()))
        if all(each.counts_as(one) for each in numberings.values()):
            comparable.append(sorted({key for key, _ in found}))
        else:
            others += found.values()
    return comparable, others


def _needed_in_order(records: Sequence[HistoryRecord], keys: Sequence[int]) -> set[int]:
    """Returns the indexes of the records that are needed to continue the stream from at least one of the order keys `keys` (ascending).

    A stream that starts before the order key of a record needs the record, because the stream will reach this key. A stream that starts at
    or after this key needs the record unless a newer record of the same subject applies at the start.
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
    """Returns the subject of a record: the table, database, trigger, view or server setting that it describes. A later record about the
    same subject replaces the record.
    """
    if record.kind in {RecordKind.SERVER, RecordKind.OBJECTS}:
        return record.kind.value, "", ""
    what = str(record.content["what"]) if record.kind is RecordKind.OBJECT else ""
    return what, record.database, record.table
