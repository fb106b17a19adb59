"""Reads a stretch of the stream for its statements alone: from a position to what is the end now. `instance` calls it at a start.

No row is taken from it, so it goes at the speed of the scan.
"""

from __future__ import annotations

from cdc_engine.errors import PositionLostError
from cdc_engine.parser.connection import SourceConnection
from cdc_engine.parser.dump import UnwantedRows, begin_dump, blocks_to_end, no_table
from cdc_engine.parser.places.binlog_files import BinlogFiles
from cdc_engine.parser.server_facts import read_facts
from cdc_engine.parser.start_position import DumpStart, Lost, StartChoice, decide_start
from cdc_engine.ports import SchemaHistory
from cdc_engine.position import Position
from cdc_engine.source.archive import Archive
from cdc_engine.source.server import Source


def scan_ddl(source: Source, begin: Position, statements: SchemaHistory, archive: Archive | None = None) -> None:
    """Tells `statements` (`apply`) each statement between `begin` and the end. `archive`: has what the server has purged of it.

    Raises PositionLostError where it cannot begin, SourceConnectionError, or what the scan raises.
    """
    connection = SourceConnection(source)
    try:
        facts = read_facts(connection, begin.file)
        start = decide_start(begin, StartChoice(), facts)
        if not isinstance(start, Lost):
            _, framer = begin_dump(connection, start, statements, no_table, prepared=UnwantedRows(), to_end=True)
            for _ in blocks_to_end(connection, framer):
                pass  # the scan goes on only where its blocks are taken
            return
    finally:
        connection.close()
    files = BinlogFiles(source, facts, archive if start.purged else None)
    if not files.is_archived(begin.file):
        raise PositionLostError(str(start))
    there = DumpStart(position=begin, by_gtid=False, executed_known=bool(begin.gtid_set))
    for _ in files.blocks(there, statements, no_table, UnwantedRows()):
        pass
