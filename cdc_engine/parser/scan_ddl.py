"""Reads a stretch of the stream for its statements alone: from a position to what is the end now. `instance` calls it at a start.

No row is taken from it, so it goes at the speed of the scan.
"""

from __future__ import annotations

from cdc_engine.binlog.events.recorded import MemoryPrepared, RecordedEvents
from cdc_engine.errors import PositionLostError, SourceConnectionError
from cdc_engine.limits import READ_TIMEOUT_SECONDS
from cdc_engine.parser.connection import SERVER_ERROR, SourceConnection, answer_error
from cdc_engine.parser.dump import begin_dump
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
        _, framer = begin_dump(connection, start, statements, _none, prepared=_NoRows(), to_end=True)
        while framer.answer is None:
            count = connection.receive_into(framer.space(), READ_TIMEOUT_SECONDS)
            if not count:
                raise SourceConnectionError(f"{source.address} was silent in the middle of its binlog")
            for _ in framer.received(count):
                pass  # the scan goes on only where its blocks are taken
        if framer.answer[:1] == SERVER_ERROR:
            raise answer_error(source, framer.answer)
    finally:
        connection.close()


class _NoRows(MemoryPrepared):
    """A transaction that was prepared before the stretch may commit in it: its rows are not wanted."""

    def commit(self, name: str, order_key: int) -> RecordedEvents:
        return super().commit(name, order_key) or RecordedEvents(b"")


def _none(_database: str, _table: str) -> bool:
    """No table's rows are wanted."""
    return False
