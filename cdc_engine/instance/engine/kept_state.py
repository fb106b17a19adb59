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
    """Opens the schema history of a destination, which is in the same record store as the destination's ledger. `token` is the fencing
    token of the lease, or 0 for a caller that only reads. Raises ConfigurationError or MetaError.
    """
    location = as_location(directory)
    return (
        SharedRepository(record_store(location), token)
        if location.is_shared
        else SchemaRepository(directory / SCHEMA_FILE)
    )


def copies_of(directory: Path, token: int = 0) -> PreparedCopies | None:
    """Returns the store in which engines on other hosts find copies of prepared XA transactions, or None if all hosts share the
    destination's folder. `token` is the fencing token of the lease, or 0 for a caller that only reads.
    """
    location = as_location(directory)
    return PreparedCopies(location, token) if location.is_apart else None


def take_up(directory: Path) -> Transition:
    """Returns the change to the ledger that an engine makes when it starts. If the staged files of a batch in flight are missing, this
    batch and all later ones are removed from the ledger, and their changes are staged again.
    """
    return lambda ledger: ledger.restarted(StagedBatches(directory).is_whole)


def refuse_lost_ledger(meta: MetaManager, kept: Repository, directory: Path) -> None:
    """Raises LedgerLostError if a destination ran before and its ledger is lost. Without this check, the destination would begin as a new
    one, and its lake would silently lack the changes before the new start.

    The destination ran before if it has a schema history, staged batches, prepared transactions or stored events. If one of these exists, a
    ledger without a position is refused too. An engine saves the position before it writes any of them, so such a ledger is a copy from
    before the first start.
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
            f"ledger, or begin a new ledger with `sluice position set {directory.name} FILE:OFFSET` at a "
            "position before the first change that may be missing (with --latest, Sluice never reads the changes "
            "up to now); the new ledger takes the tables over under a new epoch"
        )


def remove_strays(meta: MetaManager, directory: Path) -> None:
    """Removes staged files that a killed process left behind. Only files that the ledger does not name are removed, because no run reads
    these.
    """
    named = [batch.path for batch in meta.ledger.outstanding]
    StagedBatches(directory).remove_others(meta.ledger.ledger_id, named)


def positions_to_keep(meta: MetaManager, begin: Position, directory: Path, groups: tuple[Path, ...]) -> list[Position]:
    """Returns the positions from which changes may be read again: the start of the stream (`begin`), the stops of tables, the positions up
    to which tables with open snapshots are merged, and the cursors of consumers and groups. `groups` are the folders of the groups that
    have the destination as a member.
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
    """Returns the positions from which a running engine may read changes again. The result has the positions of `positions_to_keep`, the
    store's acked position, and the start of `window`.

    After a rollback, the engine reads again from the cursor, or from `begin` if the ledger has no cursor. A new consumer starts at the
    oldest change in `window`, and reads the source if the window drops this change before the consumer reads it. `window` is None if the
    destination has no consumers and belongs to no group.
    """
    kept = positions_to_keep(meta, meta.ledger.cursor or begin, directory, groups)
    return [*kept, *filter(None, [store.acked_position, window.begin if window is not None else None])]


def never_read_again(
    meta: MetaManager, store: EventStore, directory: Path, groups: tuple[Path, ...]
) -> Position | None:
    """Returns the earliest position from which changes may be read again, so that data of earlier positions can be removed. Returns None if
    neither the store nor the ledger has a position yet, or if the ledger of a group cannot be read.
    """
    positions = [position for position in (store.acked_position, meta.ledger.cursor) if position is not None]
    if not positions:
        return None
    try:
        begin = min(positions, key=_order_key)
        return min(positions_to_keep(meta, begin, directory, groups), key=_order_key)
    # If the ledger of a group cannot be read, it is unknown which positions the group's consumers still need. So nothing may be removed.
    except MetaError:
        return None


def _order_key(position: Position) -> int:
    return position.order_key
