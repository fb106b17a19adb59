"""How a dump begins: from a decided start to the framer that takes its bytes. Used by `event_parser` and `scan_ddl`."""

from __future__ import annotations

from collections.abc import Callable

from cdc_engine.binlog.scan.framing import PacketFramer
from cdc_engine.binlog.scan.scanner import Scanner
from cdc_engine.binlog.scan.skipping import FileBeginning
from cdc_engine.parser.connection import SourceConnection
from cdc_engine.parser.start_position import DumpStart
from cdc_engine.ports import PreparedTransactions, SchemaHistory


def begin_dump(
    connection: SourceConnection,
    start: DumpStart,
    history: SchemaHistory,
    captured: Callable[[str, str], bool],
    *,
    prepared: PreparedTransactions | None = None,
    to_end: bool = False,
) -> tuple[Scanner, PacketFramer]:
    """Registers as a replica and asks for the stream; `to_end`: of what the server has now. What arrives goes into the framer."""
    checksum = connection.prepare_dump()
    contiguous = not start.by_gtid and not connection.mariadb
    scanner = Scanner(
        start=start.position,
        history=history,
        captured=captured,
        checksum=checksum,
        contiguous=contiguous,
        executed_known=start.executed_known,
        prepared=prepared,
    )
    beginning = None
    if start.by_gtid:
        connection.dump_after_gtids(start.position.gtid_set, to_end=to_end)
    elif not connection.dump_from_file(start.position.file, start.position.offset, to_end=to_end):
        beginning = FileBeginning(start.position, contiguous=contiguous)
    return scanner, PacketFramer(scanner, beginning=beginning)
