"""Reads a stretch of the stream for its statements alone: from a position to what is the end now. `instance` calls it at a start.

No row is taken from it, so it goes at the speed of the scan.
"""

from __future__ import annotations

from cdc_engine.binlog.framing import PacketFramer
from cdc_engine.binlog.scan import Scanner
from cdc_engine.binlog.skipping import FileBeginning
from cdc_engine.contracts import SchemaHistory
from cdc_engine.errors import PositionLostError, SourceConnectionError
from cdc_engine.limits import READ_TIMEOUT_SECONDS
from cdc_engine.parser.connection import SourceConnection, answer_error
from cdc_engine.parser.server_facts import read_facts
from cdc_engine.parser.source import Source
from cdc_engine.parser.start_position import Lost, StartChoice, decide_start
from cdc_engine.position import Position

SERVER_ERROR = b"\xff"  # first byte of an error packet; the end of a dump has another


def look_through(source: Source, begin: Position, statements: SchemaHistory) -> None:
    """Tells `statements` (`apply`) each statement between `begin` and the end.

    Raises PositionLostError where it cannot begin, SourceConnectionError, or what the scan raises.
    """
    connection = SourceConnection(source)
    try:
        framer = _dump(connection, begin, statements)
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


def _none(_database: str, _table: str) -> bool:
    """No table's rows are wanted."""
    return False


def _dump(connection: SourceConnection, begin: Position, statements: SchemaHistory) -> PacketFramer:
    """The dump has begun; what arrives goes into the framer."""
    start = decide_start(begin, StartChoice(), read_facts(connection))
    if isinstance(start, Lost):
        raise PositionLostError(str(start))
    checksum = connection.prepare_dump()
    contiguous = not start.by_gtid and not connection.mariadb
    scanner = Scanner(
        start=start.position,
        history=statements,
        captured=_none,
        checksum=checksum,
        contiguous=contiguous,
        executed_known=start.executed_known,
    )
    beginning = None
    if start.by_gtid:
        connection.dump_after_gtids(start.position.gtid_set, to_end=True)
    elif not connection.dump_from_file(start.position.file, start.position.offset, to_end=True):
        beginning = FileBeginning(start.position, contiguous=contiguous)
    return PacketFramer(scanner, beginning=beginning)
