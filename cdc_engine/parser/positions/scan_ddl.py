"""Reads the DDL statements between a position and another position, or the current end of the binlog. Does not decode rows.

`instance` calls this module in two cases. When an engine starts, the statements show what has changed in the schemas since the start
position. When a consumer's own stream begins, the statements complete the schema history up to the stream's start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sluice.cdc_engine.binlog.block import end_position
from sluice.cdc_engine.contracts import Block
from sluice.cdc_engine.errors import PositionLostError
from sluice.cdc_engine.gtid import has_executed
from sluice.cdc_engine.parser.connection import SourceConnection
from sluice.cdc_engine.parser.positions.binlog_files import BinlogFiles
from sluice.cdc_engine.parser.renumbering import comes_before
from sluice.cdc_engine.parser.server_facts import read_facts
from sluice.cdc_engine.parser.start_position import DumpStart, Lost, StartChoice, decide_start
from sluice.cdc_engine.parser.stream.dump import Captured, UnwantedRows, begin_dump, blocks_to_end, no_table
from sluice.cdc_engine.ports import PreparedTransactions, SchemaHistory
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.source.archive import Archive
from sluice.cdc_engine.source.server import Source


def _never() -> bool:
    return False


def scan_ddl(
    source: Source,
    begin: Position,
    statements: SchemaHistory,
    archive: Archive | None = None,
    *,
    until: Position | None = None,
    captured: Captured = no_table,
    prepared: PreparedTransactions | None = None,
    given_up: Callable[[], bool] = _never,
) -> None:
    """Calls `statements.apply` for each DDL statement from `begin` to `until`, or to the end of the binlog if `until` is None.

    - `archive`: has files that the server has purged.
    - `captured`: returns whether a table is captured. `prepared` records the prepared XA transactions that change captured tables.
    - `given_up`: called for each block. If it returns True, the scan stops.

    Raises PositionLostError if neither the server nor the archive has `begin`, and InterruptedError if `given_up` stopped the scan. Raises
    SourceConnectionError if the source does not answer, and BinlogFormatError if the binlog cannot be parsed.
    """
    prepared = prepared or UnwantedRows()
    connection = SourceConnection(source)
    try:
        facts = read_facts(connection, begin.file)
        start = decide_start(begin, StartChoice(), facts)
        if not isinstance(start, Lost):
            _, framer = begin_dump(connection, start, statements, captured, prepared=prepared, to_end=True)
            _take(blocks_to_end(connection, framer), until, given_up)
            return
    finally:
        connection.close()
    files = BinlogFiles(source, facts, archive if start.purged else None, given_up=given_up)
    files.reach(lambda oldest: not comes_before(begin.file, oldest))
    if not files.is_archived(begin.file):
        raise PositionLostError(str(start))
    there = DumpStart(position=begin, by_gtid=False, executed_known=bool(begin.gtid_set))
    _take(files.blocks(there, statements, captured, prepared), until, given_up)


def _take(blocks: Iterable[Block], until: Position | None, given_up: Callable[[], bool]) -> None:
    """Reads the blocks up to `until`. While a block is read, the scan passes its DDL statements to the schema history."""
    for block in blocks:
        if given_up():
            raise InterruptedError("the search for statements in the interval was canceled")
        if (
            until is not None
            and block.transaction_count
            and has_come_to(until, end_position(block, block.transaction_count - 1))
        ):
            return


def has_come_to(until: Position, position: Position) -> bool:
    """Returns whether a stream at `position` has read everything up to `until`. Raises ValueError if an executed set cannot be parsed."""
    if position.counts_as(until):
        return position.order_key >= until.order_key
    return has_executed(position.gtid_set, until.gtid_set)
