"""Requests dumps, the streams of binlog events that a server sends to a replica, and makes the scanners that parse them. Also reads dumps
that end at the end of the binlog.

`begin_dump` requests the stream of a parser, `begin_shared` joins a dump that already runs, and `begin_independent_dump` reads a part of
the binlog without affecting the running stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sluice.batch_manifest.values import Cascade
from sluice.cdc_engine.binlog.events.recorded import MemoryPrepared, RecordedEvents
from sluice.cdc_engine.binlog.events.table_map import TableMap
from sluice.cdc_engine.binlog.events.undone_rows import UndoneRows
from sluice.cdc_engine.contracts import NO_SESSION, Block, StatementSession, TableChange, TableVersion
from sluice.cdc_engine.errors import SourceConnectionError, TableStoppedError
from sluice.cdc_engine.limits import READ_TIMEOUT_SECONDS
from sluice.cdc_engine.parser.connection import SERVER_ERROR, SourceConnection, answer_error
from sluice.cdc_engine.parser.scan.framing import PacketFramer
from sluice.cdc_engine.parser.scan.scanner import Scanner, StreamForm
from sluice.cdc_engine.parser.scan.skipping import FileBeginning
from sluice.cdc_engine.parser.shared.sharing import SharedPosition
from sluice.cdc_engine.parser.start_position import DumpStart
from sluice.cdc_engine.ports import Content, PreparedTransactions, SchemaHistory
from sluice.cdc_engine.position import Position

Captured = Callable[[str, str], bool]


class UnwantedRows(MemoryPrepared):
    """The prepared XA transactions of a scan that needs no rows. Accepts the commit of a transaction that was prepared before the scan
    began, and returns no events for this transaction. Ignores that a ROLLBACK undoes row events.
    """

    def __init__(self) -> None:
        super().__init__(UndoneRows(rows_are_read=False))

    def commit(self, name: str, order_key: int) -> Content:
        return super().commit(name, order_key) or RecordedEvents(b"")


class NoHistory:
    """A schema history without schemas (implements `ports.SchemaHistory`), for a scan that decodes no rows. `resolve` always raises
    TableStoppedError. Callers of such a scan ignore these stops.
    """

    def resolve(self, table_map: TableMap, position: Position) -> TableVersion:  # noqa: ARG002  of the contract
        raise TableStoppedError(table_map.database, table_map.table, "SCHEMA_UNKNOWN", "this scan decodes no rows")

    def apply(
        self,
        statement: str,  # noqa: ARG002
        default_database: str,  # noqa: ARG002
        position: Position,  # noqa: ARG002
        session: StatementSession = NO_SESSION,  # noqa: ARG002
    ) -> tuple[TableChange, ...]:
        return ()

    def cascades(self, database: str, table: str) -> tuple[Cascade, ...]:  # noqa: ARG002
        return ()

    def is_undone(self, database: str, table: str) -> bool:  # noqa: ARG002
        return True

    def follows(self, database: str, table: str) -> bool:  # noqa: ARG002
        return False

    def rewind(self, position: Position) -> None:
        """Does nothing, because this history has no schemas."""


def no_table(_database: str, _table: str) -> bool:
    """Returns False: no table is captured."""
    return False


def begin_dump(
    connection: SourceConnection,
    start: DumpStart,
    history: SchemaHistory,
    captured: Captured,
    *,
    prepared: PreparedTransactions | None = None,
    to_end: bool = False,
    rows_queries: bool = False,
) -> tuple[Scanner, PacketFramer]:
    """Registers as a replica and requests the stream. Returns the scanner, and the framer that gets the received bytes.

    With `to_end`, the dump ends at the current end of the binlog. With `rows_queries`, the dump includes the SQL text of statements that
    change rows.
    """
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
        form=StreamForm(rows_queries=rows_queries),
    )
    beginning, flags = None, connection.dump_flags(to_end=to_end, rows_queries=rows_queries)
    if start.by_gtid:
        connection.dump_after_gtids(start.position.gtid_set, flags)
    elif not connection.dump_from_file(start.position.file, start.position.offset, flags):
        beginning = FileBeginning(start.position, contiguous=contiguous)
    return scanner, PacketFramer(scanner, beginning=beginning)


def begin_shared(
    shared: SharedPosition, history: SchemaHistory, captured: Captured, *, prepared: PreparedTransactions
) -> tuple[Scanner, PacketFramer]:
    """Returns the scanner and the framer with which a parser continues after `shared.position`. Called if the parser changes to a dump that
    several parsers read. `shared.reader` may begin before this position, at `shared.reader.boundary`. The framer skips the bytes between
    the two.
    """
    position = shared.position
    scanner = Scanner(
        start=position,
        history=history,
        captured=captured,
        checksum=shared.checksum,
        contiguous=shared.contiguous,
        executed_known=bool(position.gtid_set),
        prepared=prepared,
    )
    beginning = FileBeginning(position, contiguous=shared.contiguous, begins_at=shared.reader.boundary.offset)
    return scanner, PacketFramer(scanner, beginning=beginning)


def begin_independent_dump(
    connection: SourceConnection,
    start: DumpStart,
    history: SchemaHistory,
    captured: Captured,
    prepared: PreparedTransactions,
) -> PacketFramer:
    """Requests the binlog from `start` to the current end of the binlog, without affecting a running stream. Returns the framer that gets
    the received bytes.
    """
    contiguous = not connection.mariadb
    scanner = Scanner(
        start=start.position,
        history=history,
        captured=captured,
        checksum=connection.prepare_independent_dump(),
        contiguous=contiguous,
        executed_known=start.executed_known,
        prepared=prepared,
    )
    within = connection.dump_independently(start.position.file, start.position.offset)
    return PacketFramer(scanner, beginning=None if within else FileBeginning(start.position, contiguous=contiguous))


def blocks_to_end(connection: SourceConnection, framer: PacketFramer) -> Iterator[Block]:
    """Yields the blocks of a dump that ends at the end of the binlog. Raises SourceConnectionError, the error that the server reports, or
    BinlogFormatError if the binlog cannot be parsed.
    """
    source = connection.source
    while framer.answer is None:
        count = connection.receive_into(framer.space(), READ_TIMEOUT_SECONDS)
        if not count:
            raise SourceConnectionError(
                f"{source.address} sent nothing for {READ_TIMEOUT_SECONDS:g} s, although its binlog has more events: check the network and "
                "the server"
            )
        yield from framer.received(count)
    if framer.answer[:1] == SERVER_ERROR:
        raise answer_error(source, framer.answer)
