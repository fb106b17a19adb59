"""Creates the three stores as `instance` does, for the tests of the contract of `ports.EventStore`."""

from __future__ import annotations

from pathlib import Path

from sluice.cdc_engine import limits
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.store.backed_store import StoreSizes
from sluice.cdc_engine.store.file_store import FileEventStore
from sluice.cdc_engine.store.files.forget import EVENTS_DIRECTORY
from sluice.cdc_engine.store.files.log import EventLog
from sluice.cdc_engine.store.memory_store import MemoryEventStore
from sluice.cdc_engine.store.mixed_store import ANYWHERE, MixedEventStore
from tests.fix_blocks import SERVER

KINDS = ("memory", "mixed", "file")
START = Position(epoch=1, file="mysql-bin.000001", offset=4, server_uuid=SERVER)
FILES_BYTES_MAX = 1 << 30
LEDGER, FILTERS = "3f2a91c04be7", "all"


def log_in(folder: Path, segment_bytes: int = 1 << 20) -> EventLog:
    return EventLog(folder / EVENTS_DIRECTORY, ledger_id=LEDGER, filters=FILTERS, segment_bytes=segment_bytes)


def make_store(
    kind: str,
    folder: Path,
    *,
    bytes_max: int = limits.RING_BYTES_MAX,
    events_max: int = limits.RING_EVENTS_MAX,
    files_bytes_max: int = FILES_BYTES_MAX,
    segment_bytes: int = 1 << 20,
    start: Position | None = None,
    ddl_isolation: bool = False,
) -> MemoryEventStore:
    """Creates a store of the given kind. If the store has files, they are in `folder`."""
    spill = folder / "spill"
    if kind == "memory":
        return MemoryEventStore(
            spill, bytes_max=bytes_max, events_max=events_max, start=start, ddl_isolation=ddl_isolation
        )
    sizes = StoreSizes(files_bytes_max=files_bytes_max, bytes_max=bytes_max, events_max=events_max)
    log = log_in(folder, segment_bytes)
    log.begin(ANYWHERE if kind == "mixed" else start or START)
    reader = log.reader_at_end()
    if kind == "mixed":
        return MixedEventStore(
            spill,
            log,
            reader,
            sizes=sizes,
            start=start,
            ddl_isolation=ddl_isolation,
        )
    store: FileEventStore = FileEventStore(
        spill,
        log,
        reader,
        sizes=sizes,
        settled=lambda: store._acked,
        start=start,
        ddl_isolation=ddl_isolation,
    )
    return store
