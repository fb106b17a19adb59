"""Filters blocks and puts them into the store (`ports.BlockSink`). Removes row events of tables that are not captured. Skips most
transactions that have no row events left, because they would flood the store.

The parser's thread calls `accept` and `idle`. While the store is full, `accept` waits in the store's `put`. So the parser reads nothing
from the socket, and the source stops sending. `interrupt` ends the wait.
"""

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
    """Determines which tables are captured, by filters. Evaluates the filters once per table, not once per block."""

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
        """Returns, for each table in `tables`, whether its row events are kept. The row events of a table that a filter excludes are kept
        too, if foreign keys carry its changes to captured tables.

        All blocks of a parser have the same list `tables`, to which the parser only appends. So the mask is computed again only when the
        list is longer than before.
        """
        if tables is not self._tables or len(tables) != len(self._mask):
            self._tables = tables
            kept = [bool(each.cascades) or self.keeps(each.database, each.table) for each in tables]
            self._mask = np.array(kept, np.bool_)
        return self._mask


class FollowedTables:
    """Determines which tables are not stopped. The lake gets only the rows of these tables."""

    def __init__(self) -> None:
        self._tables: Sequence[TableVersion] = ()
        self._mask: Mask = np.zeros(0, np.bool_)

    def mask(self, tables: Sequence[TableVersion]) -> Mask:
        """Returns, for each table in `tables`, whether the table is not stopped. All blocks of a parser have the same list `tables`, to
        which the parser only appends. So the mask is computed again only when the list is longer than before.
        """
        if tables is not self._tables or len(tables) != len(self._mask):
            self._tables = tables
            self._mask = np.array([not each.stopped for each in tables], np.bool_)
        return self._mask


def dropped_uncaptured(block: Block, tables: CapturedTables | FollowedTables) -> Block:
    """Returns the block without the row events of the tables for which `tables.mask` returns False: tables that are not captured, or
    stopped tables.
    """
    mask = tables.mask(block.tables)
    if not mask.all():
        kept = mask[block.event_table]
        if not kept.all():
            block = keep_events(block, kept)
    # The buffer also has control events and removed row events. If they take more than half of the buffer, a copy without them saves
    # memory.
    return compact(block) if 2 * block.byte_count < retained_bytes(block) else block


class OtherReaders(Protocol):
    """Gets every filtered block, for consumers that do not read the store."""

    def put(self, block: Block) -> None: ...
    def drop_open(self) -> None: ...


class EventSink:
    """Removes from blocks the row events that `table_filter` excludes, and puts the blocks into a store.

    - `table_filter`: the destination's table filter.
    - `others`: gets every filtered block, including the rows of tables that are stopped for the lake.
    - `keeps_stopped`: the store gets the rows of stopped tables too, because consumers read the store.
    """

    def __init__(
        self,
        store: EventStore,
        table_filter: TableFilter,
        others: OtherReaders | None = None,
        *,
        keeps_stopped: bool = False,
    ) -> None:
        self._store, self._others, self._keeps_stopped = store, others, keeps_stopped
        self._followed = FollowedTables()
        self._captured = CapturedTables([table_filter])
        self._thinning = Thinning()
        # True while the store has row events of a transaction whose end has not arrived.
        self._open = False
        # When the current call of `accept` began (monotonic seconds), or 0 if there is no call.
        self.accepting_since = 0.0
        # The last empty transaction, if it was skipped and no block went to the store after it.
        self._left_out: Block | None = None

    def accept(self, block: Block) -> None:
        """Filters the next block of the stream, and puts it into the store. Waits while the store is full. Raises InterruptedError if
        `interrupt` is called during the wait.
        """
        kept = self._filtered(block)
        self.accepting_since = time.monotonic()
        try:
            self._accept(kept)
        finally:
            self.accepting_since = 0.0

    @property
    def held_up(self) -> bool:
        """Whether the current call of `accept` has waited for free space in the store for more than HELD_UP_SECONDS. During the wait, the
        parser makes no blocks, so consumers get no new blocks either.
        """
        since = self.accepting_since
        return since > 0 and time.monotonic() - since > HELD_UP_SECONDS

    def _accept(self, kept: Block) -> None:
        if self._others is not None:
            # Called first, because this `put` never waits, and the store's `put` waits while the store is full.
            self._others.put(kept)
        if not self._keeps_stopped and not self._followed.mask(kept.tables).all():
            kept = dropped_uncaptured(kept, self._followed)
        if kept.event_count or kept.changes:
            self._put(kept)
        elif kept.transaction_count and self._open:
            # The block contains the end of a transaction whose events are in the store. Without this end, the store would never hand them
            # out.
            self._put(without_events(kept))
        elif kept.transaction_count:
            self._accept_empty(kept)

    def idle(self) -> None:
        """Puts the last transaction without captured rows into the store if it was skipped, so that an ack moves the cursor to the end of
        the stream. Called when the source sends nothing, and before the parser changes from its own connection to a dump that several
        destinations share.
        """
        if self._left_out is not None:
            self._put(self._left_out)

    def interrupt(self) -> None:
        """Ends a wait in `accept`, and drops the open transaction. Called when the parser stops, and before each new connection, because
        the source sends the open transaction again.
        """
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
