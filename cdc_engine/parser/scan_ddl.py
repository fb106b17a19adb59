"""Reads a stretch of the stream for its statements alone: from a position to what is the end now. `instance` calls it at a start.

No row is taken from it, so it goes at the speed of the scan.
"""

from __future__ import annotations

from cdc_engine.errors import PositionLostError
from cdc_engine.parser.connection import SourceConnection
from cdc_engine.parser.dump import UnwantedRows, begin_dump, blocks_to_end, no_table
from cdc_engine.parser.server_facts import read_facts
from cdc_engine.parser.start_position import Lost, StartChoice, decide_start
from cdc_engine.ports import SchemaHistory
from cdc_engine.position import Position
from cdc_engine.source.server import Source


def scan_ddl(source: Source, begin: Position, statements: SchemaHistory) -> None:
    """Tells `statements` (`apply`) each statement between `begin` and the end.

    Raises PositionLostError where it cannot begin, SourceConnectionError, or what the scan raises.
    """
    connection = SourceConnection(source)
    try:
        start = decide_start(begin, StartChoice(), read_facts(connection, begin.file))
        if isinstance(start, Lost):
            raise PositionLostError(str(start))
        _, framer = begin_dump(connection, start, statements, no_table, prepared=UnwantedRows(), to_end=True)
        for _ in blocks_to_end(connection, framer):
            pass  # the scan goes on only where its blocks are taken
    finally:
        connection.close()
