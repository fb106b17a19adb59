"""Makes the parts of one destination's engine from its configuration, and connects them. Used by `engine`."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable
from pathlib import Path

from sluice.cdc_engine.config import DestinationConfig
from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.destination_files import for_runs
from sluice.cdc_engine.destination_files.own_folder import OwnFolder
from sluice.cdc_engine.instance.consumers.subscriptions import forget_requested
from sluice.cdc_engine.instance.engine.begin import known_begin
from sluice.cdc_engine.instance.engine.consumer_wiring import LiveParts, consumers_of, review_of, window_of
from sluice.cdc_engine.instance.engine.kept_state import (
    copies_of,
    history_kept,
    never_read_again,
    positions_to_keep,
    positions_while_running,
    refuse_lost_ledger,
    remove_strays,
    take_up,
)
from sluice.cdc_engine.instance.failover.by_time import by_time_of
from sluice.cdc_engine.instance.parts import EngineParts, epochs_of
from sluice.cdc_engine.instance.published_history import COMPACTED_RECORDS_MIN, PublishedHistory
from sluice.cdc_engine.instance.sources import archive_of, source_of
from sluice.cdc_engine.instance.stored import store_of
from sluice.cdc_engine.instance.tables.filter_change import take_up_new_tables
from sluice.cdc_engine.instance.tables.transforms_in_use import note_transforms
from sluice.cdc_engine.instance.tables.value_policies import policies_of
from sluice.cdc_engine.meta.manager import MetaManager
from sluice.cdc_engine.meta.managers import open_meta
from sluice.cdc_engine.parser.shared.sharing import OF_PROCESS
from sluice.cdc_engine.parser.start_position import DumpStart, StartChoice
from sluice.cdc_engine.parser.stream.event_parser import EventParser, ParserCallbacks, StreamRules
from sluice.cdc_engine.ports import Lease
from sluice.cdc_engine.sink.event_sink import EventSink
from sluice.cdc_engine.sink.table_filter import TableFilter
from sluice.cdc_engine.source.in_use import SOURCE_FILE, address_in_use
from sluice.cdc_engine.store.file_store import FileEventStore
from sluice.cdc_engine.store.prepared import PREPARED_DIRECTORY, PreparedFiles, forget_prepared
from sluice.cdc_engine.table_meta.history.history import TableHistory
from sluice.cdc_engine.table_meta.schema import DroppedTable
from sluice.cdc_engine.table_meta.table_list.writing import TableListWriter


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
    """Makes the parts of an engine. Reads the ledger, decides where the stream starts, and loads the schemas at that position. If the
    ledger has no cursor, queries the source for the start position.

    `on_state` is called with each new state of the parser and its reason, and `on_start` with the start of the stream, before its first
    block. `groups` are the folders of the groups that have this destination as a member. For a new destination, `claim` is called with the
    captured tables before the start; an error of `claim` prevents the start. Raises SourceConnectionError, SourceCheckError,
    PositionLostError, LedgerLostError, MetaError or ConfigurationError. If the event store cannot be opened, raises another SluiceError.
    After an error, the ledger is closed.
    """
    meta = open_meta(directory, lease)
    try:
        return _parts_around(
            *(meta, config, directory, lease), on_state=on_state, on_start=on_start, groups=groups, claim=claim
        )
    except BaseException:
        meta.close()
        raise


def _take_up_ledger(meta: MetaManager, directory: Path) -> None:
    meta.update(take_up(directory))  # Writes a new ledger before any other file of the destination.
    # Removes the consumers that an operator had forgotten before the consumers of conf/ are added, because their number is limited.
    forget_requested(directory, meta, None)
    remove_strays(meta, directory)
    if meta.ledger.resume_position is None:
        # Removes prepared transactions of an earlier ledger, because the present ledger is new.
        forget_prepared(directory)


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
    _take_up_ledger(meta, directory)
    tables = TableFilter(config.include, config.exclude)
    history = TableHistory(kept, tables.keeps, review_of(config, directory))
    begin = known_begin(config, meta, history, tables, directory, claim=claim)
    store = store_of(config, source_of(config), meta, begin, directory, read_elsewhere=not folder.is_last)
    known = {".".join(name): history.state(*name, begin) for name in history.table_names()}
    dropped = {name for name, there in known.items() if isinstance(there, DroppedTable)}
    policies = policies_of(config)
    take_up_new_tables(
        config, directory, history.versions(begin), meta, begin, known, policies=policies, dropped=dropped
    )
    note_transforms(policies, directory)
    history.compact(positions_to_keep(meta, begin, directory, groups), COMPACTED_RECORDS_MIN)
    listed = TableListWriter(directory, token=lease.token, fence=lease.check)
    # The stream continues after the events in the store's files, if there are any.
    goes_on = store.put_position or begin
    window = window_of(config, goes_on) if config.has_consumers or groups else None
    running = functools.partial(positions_while_running, meta, store, begin, directory, groups, window=window)
    published = PublishedHistory(history, listed, fence=lease.check, begins=folder.note, kept=running)
    published.publish(goes_on)
    for_runs.share(directory, SOURCE_FILE, json.dumps({"address": address_in_use(directory)}).encode())
    sink = EventSink(store, tables, window, keeps_stopped=isinstance(store, FileEventStore))
    prepared = PreparedFiles(
        directory / PREPARED_DIRECTORY,
        lambda: never_read_again(meta, store, directory, groups),
        copies_of(directory, lease.token),
    )
    parser = EventParser(
        source_of(config),
        StreamRules(
            # Names no start position, because the ledger has a cursor by now, so the start position in conf/ is not used.
            choice=StartChoice(),
            epochs=lambda: epochs_of(meta),
            waits=len(config.sources) > 1,
            by_time=by_time_of(source_of(config), config, tables.keeps),
            archive=archive_of(config),
            follows_mixed=history.follows_objects,
            sharing=OF_PROCESS.of(source_of(config)) if config.stream == "shared" else None,
            rows_queries=config.canal_server.rows_query,
        ),
        sink=sink,
        history=published,
        captured=tables.keeps,
        callbacks=ParserCallbacks(on_state=on_state, on_start=on_start, on_idle=sink.idle),
        prepared=prepared,
    )
    consumers = None
    if window is not None:
        live = LiveParts(begin=goes_on, parser=parser, sink=sink, store=store, window=window)
        consumers = consumers_of(config, directory, meta, live, prepared)
    return EngineParts(
        source=source_of(config),
        meta=meta,
        history=published,
        store=store,
        sink=sink,
        parser=parser,
        window=window,
        consumers=consumers,
        policies=policies,
    )
