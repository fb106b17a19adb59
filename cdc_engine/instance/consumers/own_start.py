"""Finds the table schemas and prepared XA transactions with which a consumer's own stream starts. The schemas and transactions come from
the live stream. If the consumer is ahead of the live stream, the DDL statements between the live stream's position and the consumer's
position are read from the source. Used by `own_stream`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from sluice.cdc_engine.errors import PositionLostError
from sluice.cdc_engine.gtid import common_executed, same_executed
from sluice.cdc_engine.parser.positions.scan_ddl import scan_ddl
from sluice.cdc_engine.parser.start_position import FIRST_OFFSET
from sluice.cdc_engine.parser.stream.dump import Captured
from sluice.cdc_engine.ports import Content
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.sink.table_filter import TableFilter
from sluice.cdc_engine.source.archive import Archive
from sluice.cdc_engine.source.server import Source
from sluice.cdc_engine.store.own_prepared import OwnPrepared
from sluice.cdc_engine.table_meta.change.policy import SchemaDecisions
from sluice.cdc_engine.table_meta.history.history import TableHistory
from sluice.cdc_engine.table_meta.history.kept.holding import holds_at
from sluice.cdc_engine.table_meta.history.kept.repository import HistoryRecord, RecordKind, RecordsInMemory


def known_position(begin: Position, live: Position) -> Position:
    """Returns the earlier one of two positions: `begin`, where a consumer starts to read, and `live`, up to which the live stream has read.
    The schemas at the returned position are in the schema history.

    If the positions belong to two servers, returns the position after the transactions that are in both executed sets, or `begin` if the
    sets are unknown. Raises ValueError if a GTID set cannot be parsed.
    """
    if begin.counts_as(live):
        return min(begin, live, key=lambda each: each.order_key)
    both = common_executed(begin.gtid_set, live.gtid_set)
    if not both or same_executed(both, begin.gtid_set):
        return begin
    if same_executed(both, live.gtid_set):
        return live
    return dataclasses.replace(live, file="", offset=FIRST_OFFSET, gtid_set=both, file_created=0)


class OwnStart:
    """The start of a consumer's own stream at `begin`. At first, `history` has the schemas at `known`, which is `begin` or an earlier
    position. `learn` reads the DDL statements from `known` to `begin`. After that, `history` and `prepared` (the prepared transactions) are
    valid at `begin`.
    """

    def __init__(self, begin: Position, known: Position, history: TableHistory, prepared: OwnPrepared) -> None:
        self.begin, self.history, self.prepared = begin, history, prepared
        self._known, self._learnt = known, False

    def learn(self, source: Source, archive: Archive | None, captured: Captured, given_up: Callable[[], bool]) -> None:
        """Reads the DDL statements from `known` to `begin` from the source, unless an earlier call has done so. `archive` has binlog files
        that the source has purged. `captured` returns whether conf/ captures a table. `given_up` returns whether to end the call early.
        Raises PositionLostError if `known` is purged, InterruptedError if `given_up` ended the call, and another SluiceError if the binlog
        cannot be read. After an error, the next call reads the statements again from `known`.
        """
        if self._learnt:
            return
        if self._known != self.begin:
            if self._known.file:
                self.history.rewind(self._known)
            scan_ddl(
                source,
                self._known,
                self.history,
                archive,
                until=self.begin,
                captured=captured,
                prepared=self.prepared,
                given_up=given_up,
            )
        self.prepared.begin_stream()
        self._learnt = True


def own_start(
    begin: Position,
    live: Position,
    records: Iterable[HistoryRecord],
    *,
    tables: TableFilter,
    review: SchemaDecisions,
    recorded_before: Callable[[str, Position], Content | None],
) -> OwnStart | None:
    """Returns the start of a consumer's own stream, or None if the schema history does not reach back to `begin`. Raises PositionLostError
    if a GTID set cannot be parsed. `live` is the position up to which the live stream has read, and `records` are the records of the schema
    history. `recorded_before` returns the recorded events of an XA transaction that was prepared before a position.
    """
    try:
        known = known_position(begin, live)
        known_records = [record for record in records if holds_at(record, known)]
    except ValueError as error:
        raise PositionLostError(
            "the GTID set of the consumer's position, of the stream's position or of the schema history cannot be read, so the consumer "
            f"cannot continue from its position: {error}; delete the consumer's cursor with `sluice consumer forget`; the consumer then "
            "starts again at the oldest change in the window"
        ) from error
    if not any(record.kind is RecordKind.SERVER for record in known_records):
        return None
    prepared = OwnPrepared(lambda name: recorded_before(name, begin))
    return OwnStart(begin, known, TableHistory(RecordsInMemory(known_records), tables.keeps, review), prepared)
