"""Finds what earlier engines of a destination stored (schema history, prepared transactions, staged batches), and decides what is still
needed.
"""

from __future__ import annotations

from pathlib import Path

from sluice.cdc_engine.errors import LedgerLostError, MetaError
from sluice.cdc_engine.meta.manager import MetaManager, Transition
from sluice.cdc_engine.meta.managers import read_ledger
from sluice.cdc_engine.meta.stored_ledger import LEDGER
from sluice.cdc_engine.ports import EventStore
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.records.location import as_location, record_store
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.staging.batches import StagedBatches
from sluice.cdc_engine.store.files.forget import EVENTS_DIRECTORY
from sluice.cdc_engine.store.prepared import PREPARED_DIRECTORY
from sluice.cdc_engine.store.prepared_copies import PreparedCopies
from sluice.cdc_engine.store.window.window import Window
from sluice.cdc_engine.table_meta.history.kept.repository import Repository, SchemaRepository
from sluice.cdc_engine.table_meta.history.kept.shared_repository import SharedRepository

SCHEMA_FILE = "schema.jsonl"


def history_kept(directory: Path, token: int = 0) -> Repository:
    """Opens the schema history of the destination, which is stored where its ledger is.

    `token`: the lease's; 0 for callers that only read. Raises ConfigurationError, MetaError.
    """
    location = as_location(directory)
    return (
        SharedRepository(record_store(location), token)
        if location.is_shared
        else SchemaRepository(directory / SCHEMA_FILE)
    )


def copies_of(directory: Path, token: int = 0) -> PreparedCopies | None:
    """Returns where engines on other hosts find copies of prepared XA transactions; None if these hosts share the folder."""
    location = as_location(directory)
    return PreparedCopies(location, token) if location.is_apart else None


def take_up(directory: Path) -> Transition:
    """Returns the transition of the ledger at a start. It keeps the batches before the first one that lacks staged files; all later changes
    are staged again.
    """
    return lambda ledger: ledger.restarted(StagedBatches(directory).is_whole)


def refuse_lost_ledger(meta: MetaManager, kept: Repository, directory: Path) -> None:
    """Raises LedgerLostError if a destination ran before and its ledger is gone. Started as a new destination, it would silently miss the
    changes before the new start.

    Also refuses a ledger without a position: the cursor is saved before the schema history, so the ledger is a copy from before the first
    start. The destination ran before if schema history, staged batches, prepared transactions or stored events exist.
    """
    if meta.ledger.cursor is not None:
        return
    traces: list[Path | str] = [staged] if (staged := StagedBatches(directory).trace()) else []
    kept_here = (directory / PREPARED_DIRECTORY, directory / EVENTS_DIRECTORY)
    traces += [path for path in kept_here if path.is_dir() and any(path.iterdir())]
    copies = copies_of(directory)
    if copies is not None and copies.records():
        traces.append(str(copies))
    if kept.load():
        traces.append(str(kept))
    if traces:
        what = "is missing" if meta.is_new else "has no position"
        raise LedgerLostError(
            f"{record_store(directory).where(LEDGER)} {what}, though {directory.name} ran before "
            f"({traces[-1]} exists): the position up to which its tables are complete is unknown. Restore the "
            f"ledger; or begin a new ledger with `sluice position set {directory.name} FILE:OFFSET` at a "
            "position before the first change that may be missing (with --latest, Sluice never reads the changes "
            "up to now); the new ledger takes the tables over under a new epoch"
        )


def remove_strays(meta: MetaManager, directory: Path) -> None:
    """Removes staged files that a killed process left: no record of the ledger names them, so no run reads them."""
    named = [batch.path for batch in meta.ledger.outstanding if batch.path]
    StagedBatches(directory).remove_others(meta.ledger.ledger_id, named)


def positions_to_keep(meta: MetaManager, begin: Position, directory: Path, groups: tuple[Path, ...]) -> list[Position]:
    """Returns the positions that reading may restart from: the start of the stream, stops of tables, positions before snapshots that may
    be canceled, and cursors of consumers and groups.
    """
    stops = (stopped.position for stopped in meta.ledger.stopped_tables)
    since = (each.since for each in SnapshotRecords(directory).all() if each.is_open and each.since is not None)
    consumers = [consumer.cursor for consumer in meta.ledger.consumers]
    consumers += [position for group in groups for position in read_ledger(group).positions_of(directory.name)]
    return [begin, *stops, *since, *consumers]


def positions_while_running(
    meta: MetaManager,
    store: EventStore,
    begin: Position,
    directory: Path,
    groups: tuple[Path, ...],
    *,
    window: Window | None = None,
) -> list[Position]:
    """Returns what `positions_to_keep` returns while the engine runs. A rollback may read again from the cursor. `begin`: the start of the
    stream, while the ledger has no cursor. `window`: a new consumer starts at its oldest change, and reads from the source when the window
    no longer has this change.
    """
    kept = positions_to_keep(meta, meta.ledger.cursor or begin, directory, groups)
    return [*kept, *filter(None, [store.acked_position, window.begin if window is not None else None])]


def never_read_again(
    meta: MetaManager, store: EventStore, directory: Path, groups: tuple[Path, ...]
) -> Position | None:
    """Returns the position before which nothing is read again; None if that is not known now."""
    positions = [position for position in (store.acked_position, meta.ledger.cursor) if position is not None]
    if not positions:
        return None
    try:
        begin = min(positions, key=_order_key)
        return min(positions_to_keep(meta, begin, directory, groups), key=_order_key)
    except MetaError:  # The ledger of a group does not answer.
        return None


def _order_key(position: Position) -> int:
    return position.order_key
