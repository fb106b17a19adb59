"""Makes the parts of one destination's engine from its configuration, and connects them. Used by `engine`."""

from __future__ import annotations

import dataclasses
import functools
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

import structlog

from cdc_engine.config import DestinationConfig
from cdc_engine.contracts import Batch, OutstandingBatch, Staged, StoppedTable, TableVersion
from cdc_engine.destination_files import for_runs
from cdc_engine.destination_files.own_folder import OwnFolder
from cdc_engine.errors import LedgerLostError, MetaError, PositionLostError
from cdc_engine.instance.answers import SchemaAnswers
from cdc_engine.instance.canal_takeover import choice_after, cursor_of_canal
from cdc_engine.instance.consumers.consumers import Consumers
from cdc_engine.instance.consumers.forms import forms_of
from cdc_engine.instance.consumers.own_stream import OwnStreams
from cdc_engine.instance.consumers.sending import name_of
from cdc_engine.instance.consumers.statements import wanted_statements
from cdc_engine.instance.consumers.stored_stream import StoredStreams
from cdc_engine.instance.failover.by_time import by_time_of
from cdc_engine.instance.published_history import PublishedHistory
from cdc_engine.instance.stored import store_of
from cdc_engine.instance.tables.filter_change import take_up_new_tables
from cdc_engine.instance.tables.resume import has_up_to
from cdc_engine.instance.tables.value_policies import keys_of, policies_of
from cdc_engine.meta.file_meta import FILE_NAME as LEDGER_FILE
from cdc_engine.meta.ledger import Ledger
from cdc_engine.meta.left_consumers import left_consumers
from cdc_engine.meta.manager import MetaManager, Transition, stops
from cdc_engine.meta.managers import open_meta, read_ledger
from cdc_engine.parser.connection import SourceConnection
from cdc_engine.parser.event_parser import STREAMING, EventParser
from cdc_engine.parser.positions.binlog_files import BinlogFiles
from cdc_engine.parser.positions.decision import RequestedPosition
from cdc_engine.parser.positions.finding import exact_position
from cdc_engine.parser.positions.time_search import choice_at
from cdc_engine.parser.scan_ddl import scan_ddl
from cdc_engine.parser.server_facts import ServerFacts, read_facts
from cdc_engine.parser.shared.sharing import OF_PROCESS
from cdc_engine.parser.source_check import check_source
from cdc_engine.parser.start_position import DumpStart, Epochs, Lost, StartChoice, decide_start
from cdc_engine.ports import EventStore, Lease, Stager
from cdc_engine.position import Position
from cdc_engine.records.location import as_location, shared_record_store
from cdc_engine.sink.column_filter import ColumnFilter
from cdc_engine.sink.event_sink import EventSink
from cdc_engine.sink.table_filter import TableFilter
from cdc_engine.snapshot.records import SnapshotRecords
from cdc_engine.source.archive import Archive
from cdc_engine.source.in_use import SOURCE_FILE, address_in_use
from cdc_engine.source.server import Source
from cdc_engine.source.settings import SourceConfig
from cdc_engine.staging.batches import FOLDER as STAGING_DIRECTORY
from cdc_engine.staging.batches import StagedBatches
from cdc_engine.staging.staging import stage
from cdc_engine.store.file_store import FileEventStore
from cdc_engine.store.files.forget import EVENTS_DIRECTORY
from cdc_engine.store.prepared import PREPARED_DIRECTORY, PreparedFiles, forget_prepared
from cdc_engine.store.prepared_copies import PreparedCopies
from cdc_engine.store.window.window import Window
from cdc_engine.table_meta.change.evolution import ROWS_ELSEWHERE
from cdc_engine.table_meta.change.policy import SchemaDecisions
from cdc_engine.table_meta.history.changed_tables import TouchedTables
from cdc_engine.table_meta.history.history import TableHistory
from cdc_engine.table_meta.history.kept.repository import Repository, has_records, look_at
from cdc_engine.table_meta.history.kept.shared_repository import SharedRepository
from cdc_engine.table_meta.history.review_files import ReviewFiles
from cdc_engine.table_meta.history.source.schema_snapshot import SchemaSnapshot, is_of_users, stable_snapshot
from cdc_engine.table_meta.history.tables_file import TABLES_FILE
from cdc_engine.time_text import time_us

COMPACTED_RECORDS_MIN = 500  # records of the schema history; fewer are not compacted
SCHEMA_FILE = "schema.jsonl"

log = structlog.get_logger()


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineParts:
    """The parts of the engine of one destination."""

    source: Source
    meta: MetaManager
    history: PublishedHistory
    store: EventStore
    sink: EventSink
    parser: EventParser
    window: Window | None
    consumers: Consumers | None


def source_of(config: DestinationConfig) -> Source:
    """Returns the source that the destination reads."""
    return source_at(config, config.source)


def archive_of(config: DestinationConfig) -> Archive | None:
    """Returns the binlog archive, if conf/ names one."""
    return Archive(config.archive) if config.archive else None


def source_at(config: DestinationConfig, given: SourceConfig) -> Source:
    """Returns one of the sources in conf/."""
    return Source(
        destination=config.name,
        host=given.host,
        port=given.port,
        user=given.user,
        password=given.password,
        tls_mode=given.tls.mode,
        ca_file=given.tls.ca_file,
        certificate_file=given.tls.certificate_file,
        key_file=given.tls.key_file,
        server_id=given.server_id,
        installation=config.installation,
    )


def epochs_of(meta: MetaManager) -> Epochs:
    ledger = meta.ledger
    return Epochs(highest=ledger.epoch, unfinished=ledger.unfinished)


def requested_position_of(config: DestinationConfig) -> RequestedPosition:
    """Returns conf/'s settings of the start position."""
    start = config.start
    return RequestedPosition(
        file=start.file,
        offset=start.offset if start.file and not start.time else None,
        gtid_set=start.gtid_set,
        time_us=time_us(start.time, time.time_ns() // 1000) if start.time else None,
        earliest=start.earliest,
    )


def make_parts(
    config: DestinationConfig,
    directory: Path,
    lease: Lease,
    *,
    on_state: Callable[[str, str], None],
    on_start: Callable[[DumpStart], None],
    groups: tuple[Path, ...] = (),
    claim: Callable[[Iterable[TableVersion]], None] = lambda _: None,
) -> EngineParts:
    """Reads the ledger, decides where to start (asks the server if there is no cursor), and loads the schemas at that position.

    `groups`: folders of the groups that the destination is a member of. `claim`: gets the captured tables of a new destination.

    Raises SourceConnectionError, SourceCheckError, PositionLostError, MetaError, ConfigurationError; nothing is open then.
    """
    meta = open_meta(directory, lease)
    try:
        return _parts_around(
            *(meta, config, directory, lease), on_state=on_state, on_start=on_start, groups=groups, claim=claim
        )
    except BaseException:
        meta.close()
        raise


def _parts_around(
    meta: MetaManager,
    config: DestinationConfig,
    directory: Path,
    lease: Lease,
    *,
    on_state: Callable[[str, str], None],
    on_start: Callable[[DumpStart], None],
    groups: tuple[Path, ...],
    claim: Callable[[Iterable[TableVersion]], None],
) -> EngineParts:
    folder = OwnFolder(directory)
    folder.refuse_another()
    kept = history_kept(directory, lease.token)
    refuse_lost_ledger(meta, kept, directory)
    meta.update(take_up(directory))  # a new ledger is saved before anything else of the destination
    remove_strays(meta, directory)
    if meta.ledger.resume_position is None:
        forget_prepared(directory)  # left by a ledger that was removed
    tables = TableFilter(config.include, config.exclude)
    history = TableHistory(kept, tables.keeps, review_of(config, directory))
    begin = _known_begin(config, meta, history, tables, directory, claim=claim)
    store = store_of(config, source_of(config), meta, begin, directory, read_elsewhere=not folder.is_last)
    known = {".".join(name) for name in history.table_names()}
    take_up_new_tables(config, directory, history.versions(begin), meta, begin, known)
    history.compact(_goes_on_from(meta, begin, directory, groups), COMPACTED_RECORDS_MIN)
    share = functools.partial(for_runs.share, directory, TABLES_FILE)
    published = PublishedHistory(history, directory / TABLES_FILE, fence=lease.check, share=share, begins=folder.note)
    goes_on = store.put_position or begin  # after what is stored
    published.publish(goes_on)
    for_runs.share(directory, SOURCE_FILE, json.dumps({"address": address_in_use(directory)}).encode())
    window = window_of(config, goes_on) if config.has_consumers or groups else None
    sink = EventSink(store, tables, window, keeps_stopped=isinstance(store, FileEventStore))
    prepared = PreparedFiles(
        directory / PREPARED_DIRECTORY,
        lambda: _never_again(meta, store, directory, groups),
        copies_of(directory, lease.token),
    )
    parser = EventParser(
        source_of(config),
        StartChoice(),  # the ledger has a cursor by now
        sink=sink,
        history=published,
        captured=tables.keeps,
        on_state=on_state,
        on_start=on_start,
        on_idle=sink.idle,
        prepared=prepared,
        epochs=lambda: epochs_of(meta),
        waits=len(config.sources) > 1,
        by_time=by_time_of(source_of(config), config.failover, tables.keeps),
        archive=archive_of(config),
        sharing=OF_PROCESS.of(source_of(config)) if config.stream == "shared" else None,
    )
    return EngineParts(
        source=source_of(config),
        meta=meta,
        history=published,
        store=store,
        sink=sink,
        parser=parser,
        window=window,
        consumers=consumers_of(config, directory, meta, window, goes_on, prepared, parser, sink, store)
        if window is not None
        else None,
    )


def copies_of(directory: Path, token: int = 0) -> PreparedCopies | None:
    """Returns where engines on other hosts find prepared XA transactions; None if these hosts share the folder."""
    place = as_location(directory)
    return PreparedCopies(place, token) if place.is_apart else None


def window_of(config: DestinationConfig, begin: Position) -> Window:
    """Returns the window for consumers and groups."""
    return Window(begin, bytes_max=config.canal_server.window_bytes_max, isolated=config.batch.ddl_isolation)


def consumers_of(  # noqa: PLR0917  one caller
    config: DestinationConfig,
    directory: Path,
    meta: MetaManager,
    window: Window,
    begin: Position,
    prepared: PreparedFiles,
    live: EventParser,
    sink: EventSink,
    store: EventStore,
) -> Consumers:
    """Returns the consumers of what the destination captures. `live`: the parser whose stream, from `begin` on, they follow if they can."""
    tables = TableFilter(config.include, config.exclude)
    decisions = review_of(config, directory)
    streams = OwnStreams(
        source=source_of(config),
        tables=tables,
        review=dataclasses.replace(SchemaDecisions(), policy=decisions.policy, approved=decisions.approved),
        records=lambda: look_at(history_kept(directory)),
        known_to=lambda: live.position or begin,
        recorded_before=prepared.recorded_before,
        archive=archive_of(config),
        epoch=lambda: meta.ledger.epoch,
        # Not the ledger's, which an ack moves: the epoch is that of the stream's new server.
        server_uuid=lambda: live.position.server_uuid if live.position else meta.ledger.server_uuid,
        by_time=by_time_of(source_of(config), config.failover, tables.keeps),
        isolated=config.batch.ddl_isolation,
    )
    return Consumers(
        meta,
        window,
        open_own=StoredStreams(store.log, streams.open, isolated=streams.isolated).open
        if isinstance(store, FileEventStore)
        else streams.open,
        held_up=lambda: sink.held_up,
        server_filter=tables,
        wants=wanted_statements,
        brokers={each.client_id: (name_of(each), each.filter) for each in config.brokers},
        forms=forms_of(config),
        source=source_of(config),
        place=live.place,
        told=lambda: "" if live.state == STREAMING else f"its engine is {live.state}: {live.reason}",
    )


def history_kept(directory: Path, token: int = 0) -> Path | Repository:
    """Returns where the schema history of the destination is stored: where its ledger is.

    `token`: the lease's; 0 for callers that only read. Raises ConfigurationError, MetaError.
    """
    place = as_location(directory)
    return SharedRepository(shared_record_store(place), token) if place.is_shared else directory / SCHEMA_FILE


def _goes_on_from(meta: MetaManager, begin: Position, directory: Path, groups: tuple[Path, ...]) -> list[Position]:
    """Returns the positions that reading may restart from: the start of the stream, stops of tables, positions before snapshots that may
    be canceled, and cursors of consumers and groups.
    """
    stops = (stopped.position for stopped in meta.ledger.stopped_tables)
    since = (each.since for each in SnapshotRecords(directory).all() if each.is_open and each.since is not None)
    consumers = [consumer.cursor for consumer in meta.ledger.consumers]
    consumers += [place for group in groups for place in read_ledger(group).places_of(directory.name)]
    return [begin, *stops, *since, *consumers]


def _order_key(position: Position) -> int:
    return position.order_key


def _never_again(meta: MetaManager, store: EventStore, directory: Path, groups: tuple[Path, ...]) -> Position | None:
    """Returns the position up to which nothing will be read again; None if that is not known now."""
    places = [place for place in (store.acked_position, meta.ledger.cursor) if place is not None]
    if not places:
        return None
    try:
        begin = min(places, key=_order_key)
        return min(_goes_on_from(meta, begin, directory, groups), key=_order_key)
    except MetaError:  # the ledger of a group does not answer
        return None


def review_of(config: DestinationConfig, directory: Path) -> SchemaDecisions:
    """Returns the decisions of the configuration and the operators about schema changes."""
    files = ReviewFiles(directory)
    return SchemaDecisions(
        destination=config.name,
        policy=config.schema_policy,
        approved=files.approved,
        note=files.note,
        resolved=SchemaAnswers(lambda: source_of(config), directory).resolved,
    )


def take_up(directory: Path) -> Transition:
    """Returns the ledger's transition at a start: a batch without all of its staged files is staged again from the cursor, others stay."""
    return lambda ledger: ledger.restarted(StagedBatches(directory).is_whole)


def refuse_lost_ledger(meta: MetaManager, kept: Path | Repository, directory: Path) -> None:
    """Refuses to treat a destination whose ledger is gone as a new one: changes before the new start would be missing silently.

    The same applies if the ledger knows no position: the cursor is saved before the schema history, so this ledger is a copy from before
    the first start. Raises LedgerLostError if schema history or staged batches still exist.
    """
    if meta.ledger.cursor is not None:
        return
    traces: list[Path | str] = [staged] if (staged := StagedBatches(directory).trace()) else []
    kept_here = (directory / PREPARED_DIRECTORY, directory / EVENTS_DIRECTORY)
    traces += [path for path in kept_here if path.is_dir() and any(path.iterdir())]
    copies = copies_of(directory)
    if copies is not None and copies.records():
        traces.append(str(copies))
    if has_records(kept):
        traces.append(kept if isinstance(kept, Path) else "its schema history")
    if traces:
        what = "is gone" if meta.is_new else "knows no position"
        raise LedgerLostError(
            f"{directory / LEDGER_FILE} {what}, though {directory.name} ran before ({traces[-1]} is there): the position up "
            "to which its tables are complete is unknown. Restore the file; or take a new ledger with `sluice position set "
            f"{directory.name} FILE:OFFSET` at a position before the first change that may be missing (--latest leaves out "
            "what changed meanwhile); it takes the tables over under a new epoch"
        )


def remove_strays(meta: MetaManager, directory: Path) -> None:
    """Removes staged files that a killed process left: no record of the ledger names them, so no run will read them."""
    named = [batch.path for batch in meta.ledger.outstanding if batch.path]
    StagedBatches(directory).remove_others(meta.ledger.ledger_id, named)


def _known_begin(
    config: DestinationConfig,
    meta: MetaManager,
    history: TableHistory,
    tables: TableFilter,
    directory: Path,
    *,
    claim: Callable[[Iterable[TableVersion]], None],
) -> Position:
    """Returns where reading starts, with the schemas of that position loaded and the position saved in the ledger."""
    begin = meta.ledger.resume_position
    if begin is not None and history.covers(begin):
        return begin
    connection = SourceConnection(source_of(config))

    def of_users(database: str, table: str) -> bool:
        """Returns whether the table is a user's; not only captured ones, because a RENAME may make it captured."""
        return is_of_users(database) or tables.keeps(database, table)

    try:
        facts = read_facts(connection)
        check_source(source_of(config), facts)
        choice = _first_choice(config, facts, directory) if begin is None else StartChoice()
        position_now = (
            (lambda: _configured_begin(choice, connection, epochs_of(meta))) if begin is None else (lambda: begin)
        )
        snapshot, first = connection.ask(lambda session: stable_snapshot(session, of_users, position_now))
    finally:
        connection.close()
    if begin is None:
        claim(each.version() for each in snapshot.tables if tables.keeps(each.database, each.table))
    if begin is not None or choice != StartChoice():
        snapshot = _of_then(config, snapshot, first)
    if meta.ledger.cursor is None:  # before the history, which marks a started destination (`refuse_lost_ledger`)
        left = left_consumers(directory, cast("Position", first)) if config.has_consumers else ()
        meta.update(lambda ledger: functools.reduce(Ledger.with_consumer, left, ledger.set_cursor(first)))
    for database, table, reason in snapshot.elsewhere:
        if tables.keeps(database, table):
            stopped = StoppedTable(database=database, table=table, state=ROWS_ELSEWHERE, reason=reason, position=first)
            meta.update(stops(stopped))
    history.seed(snapshot, first)
    return cast("Position", first)


def _of_then(config: DestinationConfig, snapshot: SchemaSnapshot, begin: Position) -> SchemaSnapshot:
    """Removes the tables that a statement changed after an earlier position from a current snapshot: they are not known there."""
    touched = TouchedTables(snapshot)
    scan_ddl(source_of(config), begin, touched, archive_of(config))
    if touched.names:
        names = sorted(".".join(name) for name in touched.names)
        log.info("schemas_unknown_at_start", destination=config.name, position=str(begin), changed_since=names)
    return touched.left()


def _first_choice(config: DestinationConfig, facts: ServerFacts, directory: Path) -> StartChoice:
    """Returns Canal's cursor, or else the start in conf/. Raises PositionLostError if the time that either names is purged."""
    left = cursor_of_canal(directory)
    if left is not None:
        at_time = functools.partial(choice_at, BinlogFiles(source_of(config), facts))
        return choice_after(left, by_gtid=facts.gtid_enabled, at_time=at_time)
    return exact_position(source_of(config), facts, requested_position_of(config))


def _configured_begin(choice: StartChoice, connection: SourceConnection, epochs: Epochs) -> Position:
    start = decide_start(None, choice, read_facts(connection, choice.file), epochs)
    if isinstance(start, Lost):
        raise PositionLostError(str(start))
    return start.position


def keyed_tables(config: DestinationConfig, rooms: EngineParts) -> list[TableVersion]:
    """Returns the captured tables at the stream's position, each with the key from conf/."""
    begin, keys = rooms.parser.position or rooms.meta.ledger.resume_position, keys_of(config)
    there = rooms.history.versions(begin) if begin is not None else ()
    return [dataclasses.replace(each, key=keys.get(each.name, each.key)) for each in there]


def make_stager(config: DestinationConfig, directory: Path, meta: MetaManager) -> Stager:
    """Returns `staging` with the destination's columns and keys bound to it."""
    columns = ColumnFilter(config.column_include, config.column_exclude)
    keys, policies = keys_of(config), policies_of(config)
    logged = frozenset(name for name, table in config.tables.items() if table.change_log)

    def stager(batch: Batch, record: OutstandingBatch, more: Callable[[Batch], Batch]) -> Staged:
        stops = {stop.name: stop.position.order_key for stop in meta.ledger.stopped_tables}
        staged = stage(
            batch,
            config.name,
            record.delivery,
            directory / STAGING_DIRECTORY,
            ledger_id=record.ledger_id,
            more=more,
            kept=columns.kept,
            keys=keys,
            left_out=stops,
            stopped_at=stops,
            policies=policies,
            cascade_policy=config.cascade_policy,
            has_up_to=has_up_to(directory, record.start),
            logged=logged,
            again_up_to=given_up.order_key if (given_up := meta.ledger.given_up) else 0,
        )
        return _described(staged)

    return stager


def _described(staged: Any) -> Staged:
    manifest = staged.manifest
    return Staged(
        path=staged.path,
        rows=manifest.rows,
        size_bytes=manifest.bytes,
        tables=tuple(table.name for table in manifest.tables),
        first_commit_time_us=manifest.first_commit_time_us,
        stopped=staged.stopped,
    )
