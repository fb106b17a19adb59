"""Finds the place of a time in the source's binlog: what `time_place` decides, asked of the server. Used by `instance`, the console.

No row is decoded; one file is read, at the speed of the scan, beside whatever stream runs.
"""

from __future__ import annotations

import contextlib

from cdc_engine.binlog.block import end_position
from cdc_engine.binlog.events.table_map import TableMap
from cdc_engine.contracts import NO_SESSION, Block, Cascade, StatementSession, TableChange, TableVersion
from cdc_engine.errors import PositionLostError, TableStoppedError
from cdc_engine.parser.connection import SourceConnection
from cdc_engine.parser.dump import UnwantedRows, begin_beside, blocks_to_end, no_table
from cdc_engine.parser.file_creation import creation_of
from cdc_engine.parser.server_facts import ServerFacts
from cdc_engine.parser.start_position import FIRST_EPOCH, FIRST_OFFSET, DumpStart, StartChoice
from cdc_engine.parser.time_place import Ask, Gone, Within, file_of_time, first_at_or_after
from cdc_engine.position import Position
from cdc_engine.source.server import Source


def choice_at(source: Source, facts: ServerFacts, time_us: int) -> StartChoice:
    """The place before the first transaction that committed at a time or later; of a time after the end, the end.

    Raises PositionLostError where the time is gone, with the earliest on offer; SourceConnectionError; what the scan raises.
    """
    found = find_file(source, facts, time_us)
    if isinstance(found, Gone):
        raise PositionLostError(f"{source.address}: {found}")
    with contextlib.closing(SourceConnection(source)) as connection:
        return _place_within(connection, facts, found.file, time_us)


def earliest_on_offer(source: Source, facts: ServerFacts) -> tuple[int, str]:
    """The earliest time whose binlog is there, µs since 1970, and its file; (0, "") where none can be read."""
    files = [log.file for log in facts.logs]
    for file in files:
        if created := creation_of(source, file):
            found = file_of_time(
                0, (file,), {file: created}, nothing_purged=_nothing_purged(facts) and file == files[0]
            )
            return (found.earliest_us, file) if isinstance(found, Gone) else (0, file)
    return 0, ""


def _nothing_purged(facts: ServerFacts) -> bool:
    return facts.gtid_enabled and not facts.purged


def find_file(source: Source, facts: ServerFacts, time_us: int) -> Within | Gone:
    """The binlog file to look in. A connection a file that is asked about. Raises SourceConnectionError."""
    created: dict[str, int] = {}
    files = [log.file for log in facts.logs]
    while True:
        found = file_of_time(time_us, files, created, nothing_purged=_nothing_purged(facts))
        if not isinstance(found, Ask):
            return found
        created[found.file] = creation_of(source, found.file)


def _place_within(connection: SourceConnection, facts: ServerFacts, file: str, time_us: int) -> StartChoice:
    begin = Position(epoch=FIRST_EPOCH, file=file, offset=FIRST_OFFSET, server_uuid=facts.server_uuid)
    start = DumpStart(position=begin, by_gtid=False, executed_known=False)
    framer = begin_beside(connection, start, _NoHistory(), no_table, UnwantedRows())
    place = StartChoice(file=file, offset=FIRST_OFFSET)
    for block in blocks_to_end(connection, framer):
        if not block.transaction_count:
            continue
        index = first_at_or_after(block.transaction_time_us, time_us)
        if index == 0:
            return StartChoice(file=place.file, offset=place.offset, executed=place.executed or block.start_gtid_set)
        place = _after(block, (index if index > 0 else block.transaction_count) - 1)
        if index > 0:
            return place
    return place


def _after(block: Block, transaction: int) -> StartChoice:
    end = end_position(block, transaction)
    return StartChoice(file=end.file, offset=end.offset, executed=end.gtid_set)


class _NoHistory:
    """`ports.SchemaHistory` of a stretch of which neither rows nor statements are wanted."""

    def resolve(self, table_map: TableMap, position: Position) -> TableVersion:  # noqa: ARG002  of the contract
        raise TableStoppedError(table_map.database, table_map.table, "SCHEMA_UNKNOWN", "no rows are read here")

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

    def follows(self, database: str, table: str) -> bool:  # noqa: ARG002
        return False

    def rewind(self, position: Position) -> None:
        """Nothing is kept by position."""
