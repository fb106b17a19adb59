"""Decides where the stream of a destination begins, and loads the schemas of that position."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import cast

import structlog

from sluice.cdc_engine.config import DestinationConfig
from sluice.cdc_engine.contracts import StoppedTable, TableVersion
from sluice.cdc_engine.errors import PositionLostError, SourceConnectionError
from sluice.cdc_engine.instance.canal_takeover import choice_after, cursor_of_canal
from sluice.cdc_engine.instance.parts import epochs_of
from sluice.cdc_engine.instance.sources import archive_of, reader_of, source_of
from sluice.cdc_engine.meta.ledger import Ledger
from sluice.cdc_engine.meta.left_consumers import left_consumers
from sluice.cdc_engine.meta.manager import MetaManager, stops
from sluice.cdc_engine.parser.connection import SourceConnection
from sluice.cdc_engine.parser.positions.binlog_files import BinlogFiles
from sluice.cdc_engine.parser.positions.decision import RequestedPosition
from sluice.cdc_engine.parser.positions.finding import exact_position
from sluice.cdc_engine.parser.positions.scan_ddl import scan_ddl
from sluice.cdc_engine.parser.positions.time_search import choice_at
from sluice.cdc_engine.parser.server_facts import ServerFacts, read_facts
from sluice.cdc_engine.parser.source_check import check_source, is_mixed, sees_objects
from sluice.cdc_engine.parser.start_position import Epochs, Lost, StartChoice, decide_start
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.sink.table_filter import TableFilter
from sluice.cdc_engine.table_meta.change.evolution import ROWS_ELSEWHERE
from sluice.cdc_engine.table_meta.change.stored_objects import StoredObjects
from sluice.cdc_engine.table_meta.history.changed_tables import TouchedTables
from sluice.cdc_engine.table_meta.history.history import TableHistory
from sluice.cdc_engine.table_meta.history.source.schema_snapshot import SchemaSnapshot, stable_snapshot
from sluice.cdc_engine.table_meta.schema import is_of_users
from sluice.cdc_engine.time_text import time_us

log = structlog.get_logger()


def known_begin(
    config: DestinationConfig,
    meta: MetaManager,
    history: TableHistory,
    tables: TableFilter,
    directory: Path,
    *,
    claim: Callable[[Iterable[TableVersion]], None],
) -> Position:
    """Decides at which position a destination starts to read, loads the schemas at that position, saves the position in the ledger, and
    returns it. For a new destination, first calls `claim` with the captured tables. If `claim` raises an error, the destination does not
    start.
    """
    begin = meta.ledger.resume_position
    if begin is not None and history.covers(begin):
        _follow_mixed(config, history, begin)
        return begin
    connection = SourceConnection(source_of(config))

    def of_users(database: str, table: str) -> bool:
        """Returns whether to read the schema of a table: all tables of users, and captured tables of the server's own databases. The tables
        of users include tables that are not captured, because a RENAME may give them a captured name.
        """
        return is_of_users(database) or tables.keeps(database, table)

    try:
        facts = read_facts(connection)
        check_source(source_of(config), facts, captured=tables.keeps)
        choice = _first_choice(config, facts, directory) if begin is None else StartChoice()
        position_now = (
            (lambda: _configured_begin(choice, connection, epochs_of(meta))) if begin is None else (lambda: begin)
        )
        snapshot, first = connection.query(
            lambda session: stable_snapshot(session, of_users, position_now, with_objects=sees_objects(facts))
        )
    finally:
        connection.close()
    if begin is None:
        claim(each.version() for each in snapshot.tables if tables.keeps(each.database, each.table))
    if begin is not None or choice != StartChoice():
        snapshot = _of_then(config, snapshot, first)
    # Writes the cursor to the ledger before the schema history. So a schema history without a cursor in the ledger proves that the ledger
    # was lost (`refuse_lost_ledger` checks this).
    if meta.ledger.cursor is None:
        left = left_consumers(directory, cast("Position", first)) if config.has_consumers else ()
        meta.update(lambda ledger: functools.reduce(Ledger.with_consumer, left, ledger.set_cursor(first)))
    for database, table, reason in snapshot.elsewhere:
        if tables.keeps(database, table):
            stopped = StoppedTable(database=database, table=table, state=ROWS_ELSEWHERE, reason=reason, position=first)
            meta.update(stops(stopped))
    history.seed(snapshot, first)
    return cast("Position", first)


def _follow_mixed(config: DestinationConfig, history: TableHistory, begin: Position) -> None:
    """Adds the source's triggers and views to the schema history, if the history lacks them and the source now writes its binlog in MIXED
    format. In this format, the binlog may have a statement instead of row events. Without the triggers and views, it is unknown which
    tables the statement changes.

    If the source does not answer, the schema history stays as it is, and the parser refuses the MIXED format (`StreamRules.follows_mixed`).
    """
    if history.knows_objects(begin):
        return
    try:
        connection = SourceConnection(source_of(config))
    except SourceConnectionError:
        return
    try:
        facts = read_facts(connection)
        if not is_mixed(facts) or not sees_objects(facts):
            return
        snapshot, _ = connection.query(
            lambda session: stable_snapshot(session, _no_table, lambda: begin, with_objects=True)
        )
    finally:
        connection.close()
    touched = TouchedTables(snapshot)
    try:
        scan_ddl(source_of(config), begin, touched, archive_of(config))
    except PositionLostError:
        # Adds no triggers and views, because the stream cannot start: the parser will find that `begin` is lost, and report it.
        return
    history.note_objects(touched.left_objects() or StoredObjects(complete=False), begin)


def _no_table(_database: str, _table: str) -> bool:
    return False


def requested_position_of(config: DestinationConfig) -> RequestedPosition:
    """Returns the start position that conf/ requests. Raises PositionLostError if the position belongs to another source."""
    start = config.start_here()
    return RequestedPosition(
        file=start.file,
        offset=start.offset if start.file and not start.time else None,
        gtid_set=start.gtid_set,
        time_us=time_us(start.time, time.time_ns() // 1000) if start.time else None,
        earliest=start.earliest,
    )


def _of_then(config: DestinationConfig, snapshot: SchemaSnapshot, begin: Position) -> SchemaSnapshot:
    """Returns the schemas at `begin`: the current schemas of the tables that no statement has changed since `begin`. The other tables are
    left out, because their schemas at `begin` are unknown.
    """
    touched = TouchedTables(snapshot)
    scan_ddl(source_of(config), begin, touched, archive_of(config))
    if touched.names:
        names = sorted(".".join(name) for name in touched.names)
        log.info("schemas_unknown_at_start", destination=config.name, position=str(begin), changed_since=names)
    return touched.left()


def _first_choice(config: DestinationConfig, facts: ServerFacts, directory: Path) -> StartChoice:
    """Returns where a new destination starts: at the cursor that Canal left, if there is one, otherwise at the start position in conf/.
    Raises PositionLostError if the start is a time whose binlog is purged.
    """
    left = cursor_of_canal(directory)
    if left is not None:
        at_time = functools.partial(choice_at, BinlogFiles(source_of(config), facts))
        return choice_after(left, by_gtid=facts.gtid_enabled, at_time=at_time)
    return exact_position(source_of(config), facts, requested_position_of(config), reader=reader_of(config))


def _configured_begin(choice: StartChoice, connection: SourceConnection, epochs: Epochs) -> Position:
    start = decide_start(None, choice, read_facts(connection, choice.file), epochs)
    if isinstance(start, Lost):
        raise PositionLostError(str(start))
    return start.position
