"""The event store in memory and files (`EventStore`). Blocks that do not fit into the ring go to files, and move into the ring, in order,
when the ring has space.

The parser continues to read while blocks wait for their acks. Disk space limits how many blocks can wait, memory does not. The files are
not used after the process ends, because the next process reads these blocks from the source again.
"""

from __future__ import annotations

from sluice.cdc_engine import limits
from sluice.cdc_engine.contracts import Block
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.store.backed_store import BackedEventStore

# The start position of the log. It is not a position of the stream, because the files are not read by position.
ANYWHERE = Position(epoch=0, file="", offset=0)


class MixedEventStore(BackedEventStore):
    """The event store in memory and files (`ports.EventStore`). The caller has called `begin` of `log`, so `log` is empty."""

    @property
    def put_position(self) -> Position | None:
        with self._changed:
            end = ANYWHERE if self._reader.at_end else self._log.end
        return super().put_position if end == ANYWHERE else end

    def clear(self) -> None:
        """Removes all blocks and the files. The parser reads again from `acked_position`. Raises StoreFullError if the files cannot be
        replaced.
        """
        with self._changed:
            self._restart()

    def start_at(self, position: Position) -> None:
        with self._changed:
            self._restart()
            self._acked = position

    # Callers of the following methods hold the lock.

    def _keep(self, block: Block) -> None:
        if self._reader.at_end and self._ring_has_room:
            if self._log.has_dropped:
                # Before a new connection, the parser dropped the open transaction while blocks of it were only in the log. The ring may
                # have read these blocks since then. The log records a drop only when it gets its next block, but `block` goes directly into
                # the ring. So the ring drops the transaction now.
                self._forget_open()
            self._clear_log()
            self._take(block)
        else:
            self._store(block)

    def _restart(self) -> None:
        self._fence()
        self._empty()
        self._clear_log()
        self._changed.notify_all()

    def _clear_log(self) -> None:
        if not self._log.is_empty:
            self._log.begin(ANYWHERE)
            self._reader = self._log.reader_at_end()

    def _room(self) -> bool:
        return (self._reader.at_end and self._ring_has_room) or self._log.size_bytes < self._files_bytes_max

    def _refill(self, blocks_max: int = limits.RING_EVENTS_MAX) -> None:
        super()._refill(blocks_max)
        if self._log.trim_read(self._reader):
            self._changed.notify_all()
