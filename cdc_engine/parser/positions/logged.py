"""Reads the binlog from a position to the binlog's end, and finds out whether certain tables may have changed in this interval.

The snapshot of a table without a key calls this module if the account may not lock the table (`snapshot.exact_position`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Generator

from sluice.cdc_engine.binlog.block import end_position
from sluice.cdc_engine.binlog.events.table_map import TableMap
from sluice.cdc_engine.contracts import NO_SESSION, Block, StatementSession, TableChange, TableVersion
from sluice.cdc_engine.gtid import has_executed
from sluice.cdc_engine.parser.connection import SourceConnection
from sluice.cdc_engine.parser.start_position import DumpStart
from sluice.cdc_engine.parser.stream.dump import NoHistory, UnwantedRows, begin_independent_dump, blocks_to_end
from sluice.cdc_engine.ports import Content
from sluice.cdc_engine.position import Position, file_number, order_key
from sluice.cdc_engine.source.server import Source


class _Changes(NoHistory):
    """A schema history without schemas, which records in `seen` whether one of `tables` may have changed. A row event of one of the tables
    counts as a change. Every statement and every XA COMMIT counts too, because it may change rows of any table. Changes after the order key
    `until` do not count. If `until` is None, `seen` stays False.
    """

    def __init__(self, tables: Collection[tuple[str, str]], until: int | None) -> None:
        self._tables, self._until, self.seen = frozenset(tables), until, False

    def captured(self, database: str, table: str) -> bool:
        return (database, table) in self._tables

    def note(self, order_key: int) -> None:
        self.seen = self.seen or (self._until is not None and order_key <= self._until)

    def resolve(self, table_map: TableMap, position: Position) -> TableVersion:
        self.note(position.order_key)
        return super().resolve(table_map, position)

    def apply(
        self, statement: str, default_database: str, position: Position, session: StatementSession = NO_SESSION
    ) -> tuple[TableChange, ...]:
        """Counts the statement as a change, because a statement may change any table."""
        self.note(position.order_key)
        return super().apply(statement, default_database, position, session)


class _XaCommits(UnwantedRows):
    """The prepared XA transactions of a scan. Counts every XA COMMIT as a change, because the rows of the transaction may be in an XA
    PREPARE before the interval.
    """

    def __init__(self, changes: _Changes) -> None:
        super().__init__()
        self._changes = changes

    def commit(self, name: str, order_key: int) -> Content:
        self._changes.note(order_key)
        return super().commit(name, order_key)


def logged_after(
    source: Source,
    begin: Position,
    tables: Collection[tuple[str, str]],
    until: tuple[str, int] | None = None,
    executed: str = "",
) -> tuple[Position, bool]:
    """Reads the binlog from `begin` to its end. Returns the end with its executed set, and whether one of the tables may have changed up to
    `until` (file, offset). Without `until`, the second value is False.

    Any statement counts as a change. If the GTID set `executed` is given, the first transactions after `begin` are ignored as long as the
    set contains them. Raises SourceConnectionError, and BinlogFormatError if the binlog cannot be parsed.
    """
    key = None if until is None else order_key(begin.epoch, file_number(until[0]), until[1])
    start = _executed_up_to(source, begin, executed) if executed else begin
    changes, end = _Changes(tables, key), start
    for block in _blocks(source, start, changes, _XaCommits(changes)):
        if block.transaction_count:
            end = end_position(block, block.transaction_count - 1)
    return end, changes.seen


def _executed_up_to(source: Source, begin: Position, executed: str) -> Position:
    """Returns the position before the first transaction after `begin` that is not in the GTID set `executed`. If all transactions are in
    the set, returns the end of the last one.
    """
    changes, end = _Changes((), None), begin
    with contextlib.closing(_blocks(source, begin, changes, UnwantedRows())) as blocks:
        for block in blocks:
            for index in range(block.transaction_count):
                after = end_position(block, index)
                if not has_executed(executed, after.gtid_set):
                    return end
                end = after
    return end


def _blocks(source: Source, begin: Position, changes: _Changes, prepared: UnwantedRows) -> Generator[Block]:
    start = DumpStart(position=begin, by_gtid=False, executed_known=True)
    with contextlib.closing(SourceConnection(source)) as connection:
        yield from blocks_to_end(
            connection, begin_independent_dump(connection, start, changes, changes.captured, prepared)
        )
