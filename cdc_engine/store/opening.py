"""Makes the store that conf/ names, and decides whether the engine can use the events that an earlier process stored. Called by
`instance`.

Stored events are usable only if the ledger and the captured tables are the same as before, and a stored transaction ends at the ledger's
position, where the next batch begins. Events that are not usable are removed, and the engine reads them from the source again. If the
source no longer has them, the stored events stay, the engine reports STORE_UNFIT, and an operator decides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import structlog

from sluice.cdc_engine import limits
from sluice.cdc_engine.errors import StoreDamagedError, StoreUnfitError
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.store.backed_store import StoreSizes
from sluice.cdc_engine.store.file_store import FileEventStore
from sluice.cdc_engine.store.files.forget import EVENTS_DIRECTORY, forget_events
from sluice.cdc_engine.store.files.log import EventLog
from sluice.cdc_engine.store.files.reader import LogReader
from sluice.cdc_engine.store.memory_store import MemoryEventStore
from sluice.cdc_engine.store.mixed_store import ANYWHERE, MixedEventStore
from sluice.cdc_engine.store.window.positions import key_of

SPILL_DIRECTORY, OVERFLOW_DIRECTORY = "spill", "overflow"
# The minimum number of files of a full store. A store frees space only by removing a whole file whose blocks are all acked, so a few large
# files would free space late.
SEGMENTS_MIN = 8

log = structlog.get_logger()


@dataclasses.dataclass(frozen=True, kw_only=True)
class StorePlan:
    """The configuration of a store: its kind ("memory", "file", or "mixed" for memory and files), the destination's folder `directory`,
    the maximum number of bytes in event files, and the limits of the ring. With `ddl_isolation`, a statement that changes tables is a
    separate batch.
    """

    kind: str
    directory: Path
    files_bytes_max: int = limits.STORE_BYTES_MAX
    bytes_max: int = limits.RING_BYTES_MAX
    events_max: int = limits.RING_EVENTS_MAX
    ddl_isolation: bool = False

    @property
    def sizes(self) -> StoreSizes:
        return StoreSizes(files_bytes_max=self.files_bytes_max, bytes_max=self.bytes_max, events_max=self.events_max)

    def log(self, going_on: GoingOn) -> EventLog:
        """Returns the log of the store's event files. The caller must then call the log's `begin` to empty the log, or `open` to read the
        files of the last process.
        """
        return EventLog(
            self.directory / (OVERFLOW_DIRECTORY if self.kind == "mixed" else EVENTS_DIRECTORY),
            ledger_id=going_on.ledger_id,
            filters=going_on.filters,
            segment_bytes=min(limits.SEGMENT_BYTES, self.files_bytes_max // SEGMENTS_MIN),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GoingOn:
    """The facts with which stored events must agree: the ledger's id, its highest epoch, and `begin`, where the next batch starts.
    `filters` is a digest of the settings that select tables.

    `read_elsewhere` is True if an engine on another host, with a folder of its own, has read the stream since the events were stored.
    `lost` asks the source whether the stream can be read from `begin`. `lost` returns the reason why this is impossible, or an empty text
    if it is possible, or raises SourceConnectionError.
    """

    ledger_id: str
    filters: str
    epoch: int
    begin: Position
    lost: Callable[[], str]
    read_elsewhere: bool = False


def open_store(plan: StorePlan, going_on: GoingOn, settled: Callable[[], Position | None]) -> MemoryEventStore:
    """Opens the store that `plan` describes. A store of the kind "file" continues with the stored events if they are usable. `settled`
    returns the ledger's cursor, or None if the ledger has no cursor yet. Raises StoreUnfitError or StoreDamagedError if stored events are
    still needed and cannot be used, and StoreFullError if a file cannot be written or removed. Raises SourceConnectionError if the source
    must be queried and does not answer.
    """
    spill, events = plan.directory / SPILL_DIRECTORY, plan.log(going_on)
    if plan.kind == "file":
        forget_events(plan.directory, OVERFLOW_DIRECTORY)
        reader = _taken_up(events, going_on)
        return FileEventStore(
            spill,
            events,
            reader,
            sizes=plan.sizes,
            settled=settled,
            start=going_on.begin,
            ddl_isolation=plan.ddl_isolation,
        )
    _leave_files(dataclasses.replace(plan, kind="file"), going_on)
    ring = {"bytes_max": plan.bytes_max, "events_max": plan.events_max}
    if plan.kind == "memory":
        return MemoryEventStore(spill, **ring, start=going_on.begin, ddl_isolation=plan.ddl_isolation)
    events.begin(ANYWHERE)
    return MixedEventStore(
        spill,
        events,
        events.reader_at_end(),
        sizes=plan.sizes,
        start=going_on.begin,
        ddl_isolation=plan.ddl_isolation,
    )


def misfit(events: EventLog, going_on: GoingOn) -> str:
    """Returns why the stored events of an opened log cannot continue at the ledger's position, or an empty text if they can. Raises
    StoreDamagedError if the stored events are damaged.
    """
    ledger_id, filters = events.identity
    begin = going_on.begin
    if ledger_id != going_on.ledger_id:
        return f"the events were stored under the ledger {ledger_id}, and the present ledger is {going_on.ledger_id}"
    if filters != going_on.filters:
        return "the captured tables in conf/ (include, exclude) have changed"
    if events.end.epoch > going_on.epoch:
        return (
            f"the events continue in epoch {events.end.epoch}, which the ledger never began (its epoch is "
            f"{going_on.epoch})"
        )
    found = events.reader_at(begin)
    if going_on.read_elsewhere:
        return (
            "after this host stored the events, an engine on another host read the stream, so the schema history and the prepared XA "
            "transactions are newer than the events"
        )
    if found is None:
        return f"the events are from {events.start} to {events.end}, and the ledger continues at {begin}"
    there = found[1]
    if key_of(there) != key_of(begin):
        return f"none of the stored transactions ends at {begin}, where the ledger continues"
    if another_file(there, begin):
        return f"the events are from another binlog file than the ledger's position, although both files have the name {there.file}"
    return ""


def another_file(there: Position, begin: Position) -> bool:
    """Returns whether two positions with the same binlog file name are in different files. The files are different if their creation times
    or servers differ. An unknown creation time or server counts as equal.
    """
    created = there.file_created and begin.file_created and there.file_created != begin.file_created
    uuid = there.server_uuid and begin.server_uuid and there.server_uuid != begin.server_uuid
    return bool(created or uuid)


def _taken_up(events: EventLog, going_on: GoingOn) -> LogReader:
    """Returns a reader of the stored events from the ledger's position on. If the stored events do not continue at that position, begins a
    new log and returns the reader of the new log. Raises StoreUnfitError or StoreDamagedError instead if the source no longer has events
    that are still needed.
    """
    try:
        if not events.open():
            events.begin(going_on.begin)
            return events.reader_at_end()
        why = misfit(events, going_on)
    except StoreDamagedError as error:
        if lost := going_on.lost():
            raise StoreDamagedError(f"{error} (the events cannot be read again from the source: {lost})") from error
        why = str(error)
    else:
        if why and key_of(events.end) > key_of(going_on.begin):
            _refuse_if_lost(events, going_on, why)
    if why:
        where = {"directory": str(events.directory), "read_again_from": str(going_on.begin)}
        log.warning("stored_events_discarded", why=why, **where)
        events.begin(going_on.begin)
        return events.reader_at_end()
    events.go_on()
    found = events.reader_at(going_on.begin)
    if found is None:
        raise RuntimeError(
            f"the stored events at {going_on.begin} disappeared while the store was opened. This is a defect of Sluice: report it"
        )
    log.info("stored_events_continued", directory=str(events.directory), begin=str(going_on.begin), end=str(events.end))
    return found[0]


def _refuse_if_lost(events: EventLog, going_on: GoingOn, why: str) -> None:
    if lost := going_on.lost():
        raise StoreUnfitError(
            f"the events in {events.directory} cannot be handed out: {why}. The source no longer has these "
            f"events either: {lost}. If a change of conf/ or of the ledger is the cause, undo the change. Otherwise remove "
            f"{events.directory}: the destination then stops as POSITION_LOST, and you can choose one of the options of that state"
        )


def _leave_files(before: StorePlan, going_on: GoingOn) -> None:
    """Removes the event files of an earlier process for which conf/ set another kind of store. `before` is the plan of the store that wrote
    these files. Raises StoreUnfitError if the events in these files are still needed and the source no longer has them. Raises
    StoreDamagedError if a file cannot be read, and StoreFullError after an I/O error.
    """
    events = before.log(going_on)
    if events.open() and key_of(events.end) > key_of(going_on.begin):
        _refuse_if_lost(events, going_on, "conf/ now sets another kind of store")
    forget_events(before.directory)
    forget_events(before.directory, OVERFLOW_DIRECTORY)
