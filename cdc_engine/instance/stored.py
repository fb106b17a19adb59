"""Opens the event store of a destination by the settings in conf/ and the ledger, for `wiring`. Also checks, for `engine_acts`, whether
stored events may be discarded.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from sluice.cdc_engine.config import DestinationConfig
from sluice.cdc_engine.meta.manager import MetaManager
from sluice.cdc_engine.parser.connection import SourceConnection
from sluice.cdc_engine.parser.server_facts import read_facts
from sluice.cdc_engine.parser.start_position import Epochs, Lost, StartChoice, decide_start
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.source.server import Source
from sluice.cdc_engine.store.files.forget import EVENTS_DIRECTORY
from sluice.cdc_engine.store.memory_store import MemoryEventStore
from sluice.cdc_engine.store.opening import GoingOn, StorePlan, open_store


def store_of(
    config: DestinationConfig,
    source: Source,
    meta: MetaManager,
    begin: Position,
    directory: Path,
    *,
    read_elsewhere: bool = False,
) -> MemoryEventStore:
    """Opens the event store of a destination. `read_elsewhere` is True if another engine, with its own folder, has read the stream since
    this store was written.

    Raises StoreUnfitError if the stored events do not fit the ledger or conf/, StoreDamagedError if they cannot be read, and StoreFullError
    if files cannot be written or removed. Raises SourceConnectionError if the source must be queried and does not answer.
    """
    plan = StorePlan(
        kind=config.store.kind,
        directory=directory,
        files_bytes_max=config.store.bytes_max,
        bytes_max=config.ring.bytes_max,
        ddl_isolation=config.batch.ddl_isolation,
    )
    going_on = GoingOn(
        ledger_id=meta.ledger.ledger_id,
        filters=_digest(config),
        epoch=meta.ledger.epoch,
        begin=begin,
        read_elsewhere=read_elsewhere,
        lost=lambda: _why_lost(source, begin, meta),
    )
    return open_store(plan, going_on, lambda: meta.ledger.cursor)


def only_copy(config: DestinationConfig, source: Source, meta: MetaManager, directory: Path) -> str:
    """Returns why the source lacks the changes after the cursor, so that the stored events are their only copy. Returns an empty text if
    the source has these changes, if conf/ names an archive, or if no events are stored. Raises SourceConnectionError if the source does not
    answer.
    """
    cursor = meta.ledger.cursor
    if cursor is None or config.archive or not (directory / EVENTS_DIRECTORY).is_dir():
        return ""
    return _why_lost(source, cursor, meta)


def _digest(config: DestinationConfig) -> str:
    """Returns a digest of the table filters. Stored events contain only rows of tables that these filters keep, so after a change of the
    filters the source must be read again.
    """
    return hashlib.sha256(json.dumps([config.include, config.exclude]).encode()).hexdigest()[:16]


def _why_lost(source: Source, begin: Position, meta: MetaManager) -> str:
    """Returns why the stream cannot be read from the source at the position `begin`, or an empty text if it can."""
    epochs = Epochs(highest=meta.ledger.epoch, unfinished=meta.ledger.unfinished)
    connection = SourceConnection(source)
    try:
        start = decide_start(begin, StartChoice(), read_facts(connection, begin.file), epochs)
    finally:
        connection.close()
    return str(start) if isinstance(start, Lost) else ""
