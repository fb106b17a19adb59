"""Implements the `BlockSink` after the parser: removes row events of tables that are not captured, thins out transactions that became
empty, and puts the rest into the store.

The parser's thread calls `accept` and `idle`; `interrupt` is called to stop it. The store does the waiting: while it is full, `accept`
waits in `put`, the parser stops reading, and the back-pressure reaches the server through the socket."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from sluice.cdc_engine.binlog.block import Mask, compact, keep_events, last_transaction, retained_bytes, without_events
from sluice.cdc_engine.contracts import Block, TableVersion
from sluice.cdc_engine.ports import EventStore
from sluice.cdc_engine.sink.empty_transactions import Thinning
from sluice.cdc_engine.sink.table_filter import TableFilter

HELD_UP_SECONDS = 1.0


class CapturedTables:
    """Decides which tables of a block the filters keep, as a mask by table index. Evaluates the filters once per table, not per block."""

    def __init__(self, filters: Sequence[TableFilter]) -> None:
        self._filters = filters
        self._by_name: dict[tuple[str, str], bool] = {}
        self._tables: Sequence[TableVersion] = ()
        self._mask: Mask = np.zeros(0, np.bool_)

    def keeps(self, database: str, table: str) -> bool:
        """Returns whether every filter keeps the table."""
        name = (database, table)
        if name not in self._by_name:
            self._by_name[name] = all(each.keeps(database, table) for each in self._filters)
        return self._by_name[name]

    def mask(self, tables: Sequence[TableVersion]) -> Mask:
        """Returns for each table of a block whether it is kept. A table whose foreign keys change other tables is always kept.

        The parser passes the same list each time and only appends to it. So the mask is computed again only after it has grown.
        """
        if tables is not self._tables or len(tables) != len(self._mask):
            self._tables = tables
            kept = [bool(each.cascades) or self.keeps(each.database, each.table) for each in tables]
            self._mask = np.array(kept, np.bool_)
        return self._mask


class FollowedTables:
    """Decides which tables of a block are not stopped, as a mask by table index."""

    def __init__(self) -> None:
        self._tables: Sequence[TableVersion] = ()
        self._mask: Mask = np.zeros(0, np.bool_)

    def mask(self, tables: Sequence[TableVersion]) -> Mask:
        """Returns for each table of a block whether it is not stopped. Computed again only after the list of tables has grown."""
        if tables is not self._tables or len(tables) != len(self._mask):
            self._tables = tables
            self._mask = np.array([not each.stopped for each in tables], np.bool_)
        return self._mask


def dropped_uncaptured(block: Block, tables: CapturedTables | FollowedTables) -> Block:
    """Returns the block without row events of tables that the mask of `tables` leaves out."""
    mask = tables.mask(block.tables)
    if not mask.all():
        kept = mask[block.event_table]
        if not kept.all():
            block = keep_events(block, kept)
    # Control events and dropped rows stay in the buffer until most of it is unused. Then a copy costs less than keeping
    # the buffer.
    return compact(block) if 2 * block.byte_count < retained_bytes(block) else block


class OtherReaders(Protocol):
    """Receives the blocks for readers that do not read the store."""

    def put(self, block: Block) -> None: ...
    def drop_open(self) -> None: ...


class EventSink:
    """Implements `contracts.BlockSink` over a store.

    `server_filter` is the destination's own filter. A client's filter (`narrow`) applies in addition: it can remove tables, but never add
    one that the server excludes (in Canal it replaces the server's). Blocks that are in the store already are not filtered again.

    `others` get the rows of tables that have stopped for the lake. The store gets them only if it `keeps_stopped`, because consumers read
    it too.
    """

    def __init__(
        self,
        store: EventStore,
        server_filter: TableFilter,
        others: OtherReaders | None = None,
        *,
        keeps_stopped: bool = False,
    ) -> None:
        self._store, self._others, self._keeps_stopped = store, others, keeps_stopped
        self._followed = FollowedTables()
        self._server_filter = server_filter
        self._captured = CapturedTables([server_filter])
        self._thinning = Thinning()
        self._open = False  # Whether events of a transaction were put that has not ended yet.
        self.accepting_since = 0.0  # When the current block arrived; 0 without one.
        self._left_out: Block | None = None  # The last empty transaction that was left out.

    def narrow(self, client_filter: str) -> None:
        """Keeps, from the next block on, only tables that also match the client's patterns. An empty text removes nothing."""
        self._captured = CapturedTables([self._server_filter, TableFilter(client_filter)])

    def accept(self, block: Block) -> None:
        """Accepts one block, in stream order; see `contracts.BlockSink`. Raises InterruptedError if interrupted while it waits."""
        kept = self._filtered(block)
        self.accepting_since = time.monotonic()
        try:
            self._accept(kept)
        finally:
            self.accepting_since = 0.0

    @property
    def held_up(self) -> bool:
        """Whether a block has waited for space in the store for a while, so that other readers get nothing new."""
        since = self.accepting_since
        return since > 0 and time.monotonic() - since > HELD_UP_SECONDS

    def _accept(self, kept: Block) -> None:
        if self._others is not None:
            self._others.put(kept)  # never waits
        if not self._keeps_stopped and not self._followed.mask(kept.tables).all():
            kept = dropped_uncaptured(kept, self._followed)
        if kept.event_count or kept.changes:
            self._put(kept)
        elif kept.transaction_count and self._open:
            # A transaction whose events are in the store ends here; its end is never left out.
            self._put(without_events(kept))
        elif kept.transaction_count:
            self._accept_empty(kept)

    def idle(self) -> None:
        """Passes on the last transaction that was left out, so that the cursor reaches the end of a stream that has caught up and is
        silent.
        """
        if self._left_out is not None:
            self._put(self._left_out)

    def interrupt(self) -> None:
        """Drops the open transaction and ends waits. The connection is lost, and the transaction arrives again."""
        self._open, self._left_out = False, None
        if self._others is not None:
            self._others.drop_open()
        self._store.drop_open_transaction()

    def _filtered(self, block: Block) -> Block:
        if block.changes:
            changes = tuple(change for change in block.changes if self._captured.keeps(change.database, change.table))
            return block if len(changes) == len(block.changes) else dataclasses.replace(block, changes=changes)
        return dropped_uncaptured(block, self._captured)

    def _put(self, block: Block) -> None:
        self._store.put(block)
        self._left_out = None
        ended = int(block.transaction_events[-1]) if block.transaction_count else -1
        self._open = ended < block.event_count

    def _accept_empty(self, block: Block) -> None:
        empty = last_transaction(without_events(block))
        due, self._thinning = self._thinning.after(
            int(empty.transaction_time_us[-1]), block.transaction_count, block.file
        )
        if due:
            self._put(empty)
        else:
            self._left_out = empty
