"""The event store in files (`EventStore`). A block is in a segment file before it can be handed out, so a restarted engine continues with
the blocks in the files.

Acked blocks stay while the files have at most `files_bytes_max` bytes, for consumers that are behind and for `go_back` to a position before
the last ack. Blocks without an ack are never removed to free space: if the files are full, a put waits for an ack.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from sluice.cdc_engine.contracts import Batch, Block
from sluice.cdc_engine.errors import StoreFullError
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.store.backed_store import BackedEventStore, StoreSizes
from sluice.cdc_engine.store.files.log import EventLog
from sluice.cdc_engine.store.files.reader import LogReader
from sluice.cdc_engine.store.window.positions import key_of


class FileEventStore(BackedEventStore):
    """The event store in files (`ports.EventStore`). `settled` returns the ledger's cursor, or None if the ledger has no cursor yet. Only
    blocks before this cursor are removed to free space, because a restarted engine needs all blocks after it.
    """

    def __init__(
        self,
        spill_dir: Path,
        log: EventLog,
        reader: LogReader,
        *,
        sizes: StoreSizes,
        settled: Callable[[], Position | None],
        start: Position | None = None,
        ddl_isolation: bool = False,
    ) -> None:
        super().__init__(
            spill_dir,
            log,
            reader,
            sizes=sizes,
            start=start,
            ddl_isolation=ddl_isolation,
        )
        self._settled = settled

    @property
    def log(self) -> EventLog:
        """The log. Consumers read it independently of the store."""
        return self._log

    @property
    def put_position(self) -> Position | None:
        with self._changed:
            return self._log.end

    def put(self, block: Block) -> None:
        """Appends a block. While the files are full, waits until acks free space. Appends at once, beyond the limit, if no ack can free
        space. Raises InterruptedError if another thread dropped the open transaction, or StoreFullError if the files cannot be written or
        synced. After an error the store is unchanged.
        """
        # Syncs before the put. If the sync failed after the put, the caller would put the same block twice.
        self._log.sync_if_due()
        super().put(block)

    def get(self, byte_count_max: int, event_count_max: int, timeout_seconds: float = 0.0) -> Batch:
        """Returns the next batch: as many complete transactions as both limits permit, but at least one. Waits up to `timeout_seconds` for
        a complete transaction, and returns an empty batch if none arrives. Raises StoreDamagedError if the next block cannot be read back,
        and StoreFullError if the files cannot be synced.
        """
        # A put syncs the blocks that were put before it, if a sync is due. A get does so too, in case no further block is put.
        self._log.sync_if_due()
        return super().get(byte_count_max, event_count_max, timeout_seconds)

    def ack(self, end: Position) -> None:
        super().ack(end)
        with self._changed:
            self._trim()
            self._changed.notify_all()

    def go_back(self, position: Position) -> bool:
        """Goes back to a position before the last ack, so that all changes after the position are handed out again. Returns False and
        changes nothing if the files do not have all these changes. Returns True and changes nothing if the position is not before the last
        ack.
        """
        with self._changed:
            if self._acked is not None and self._acked.order_key <= position.order_key:
                return True
            found = self._log.reader_at(position)
            if found is None or key_of(found[1]) != key_of(position):
                return False
            forgotten = self._ring.forgotten_events
            self._empty()
            # `_empty` counted the blocks in the ring as forgotten, but they stay in the files and the parser does not put them again.
            self._ring = dataclasses.replace(self._ring, forgotten_events=forgotten)
            self._reader, self._acked = found[0], position
            return True

    def clear(self) -> None:
        """Removes all blocks and their files. The parser reads again from `acked_position`. Raises StoreFullError if the files cannot be
        replaced.
        """
        with self._changed:
            self._begin_at(self._acked or self._log.start)

    def start_at(self, position: Position) -> None:
        with self._changed:
            self._begin_at(position)

    # Callers of the following methods hold the lock.

    def _keep(self, block: Block) -> None:
        self._store(block)

    def _begin_at(self, position: Position) -> None:
        self._fence()
        self._empty()
        self._log.begin(position)
        self._acked, self._reader = position, self._log.reader_at_end()
        self._changed.notify_all()

    def _room(self) -> bool:
        self._trim()
        return self._log.size_bytes < self._files_bytes_max or self._only_open()

    def _only_open(self) -> bool:
        """Returns whether no ack would free space in the files, so that a put must not wait for space. This is the case if the ledger's
        cursor has reached the end of the last complete transaction in the files, or if the ledger has no cursor.
        """
        settled = self._settled()
        return settled is None or key_of(self._log.end) <= key_of(settled)

    def _trim(self) -> None:
        settled = self._settled()
        if settled is not None:
            try:
                self._log.trim(key_of(settled), self._files_bytes_max)
            except OSError as error:
                raise StoreFullError(
                    f"acked events in {self._log.directory} cannot be removed ({error}): correct the "
                    "permissions of that folder"
                ) from error
