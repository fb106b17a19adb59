"""The `BlockSink` after the parser: drops row events of tables nobody captures, thins out what became empty, puts the rest.

Driven by the parser's thread (`accept`, `idle`) and ended by whoever stops it (`interrupt`). Waiting is the store's: while it is full
`accept` waits in `put`, the parser stops reading, and the back-pressure reaches the server through the socket.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from cdc_engine.binlog.block import Mask, compact, held_bytes, keep_events, last_transaction, without_events
from cdc_engine.contracts import Block, TableVersion
from cdc_engine.ports import EventStore
from cdc_engine.sink.empty_transactions import Thinning
from cdc_engine.sink.table_filter import TableFilter

HELD_UP_SECONDS = 1.0


class CapturedTables:
    """The filters' answer for each table of a block, as a mask by table index; asked once a table, not once a block."""

    def __init__(self, filters: Sequence[TableFilter]) -> None:
        self._filters = filters
        self._by_name: dict[tuple[str, str], bool] = {}
        self._tables: Sequence[TableVersion] = ()
        self._mask: Mask = np.zeros(0, np.bool_)

    def keeps(self, database: str, table: str) -> bool:
        """Whether every filter keeps the table."""
        name = (database, table)
        if name not in self._by_name:
            self._by_name[name] = all(each.keeps(database, table) for each in self._filters)
        return self._by_name[name]

    def mask(self, tables: Sequence[TableVersion]) -> Mask:
        """Bool, one a table reference; one whose rows change those of others is kept for that.

        The parser hands on the same growing sequence, so that mostly nothing is to be done.
        """
        if tables is not self._tables or len(tables) != len(self._mask):
            self._tables = tables
            kept = [bool(each.cascades) or self.keeps(each.database, each.table) for each in tables]
            self._mask = np.array(kept, np.bool_)
        return self._mask


def dropped_uncaptured(block: Block, tables: CapturedTables) -> Block:
    """The block without row events of tables that are not captured."""
    mask = tables.mask(block.tables)
    if not mask.all():
        kept = mask[block.event_table]
        if not kept.all():
            block = keep_events(block, kept)
    # Control events and dropped rows stay in the buffer until it is mostly dead weight: a copy costs less than holding it.
    return compact(block) if 2 * block.byte_count < held_bytes(block) else block


class OtherReaders(Protocol):
    """Where the blocks go that readers beside the store get."""

    def put(self, block: Block) -> None: ...
    def drop_open(self) -> None: ...


class EventSink:
    """Implements `contracts.BlockSink` over a store.

    `server_filter` is the destination's own. A client's filter (`narrow`) is applied beside it: it can take tables away, never add one
    the server excludes (in Canal it replaces the server's). Blocks that are in the store already are not filtered again.
    """

    def __init__(self, store: EventStore, server_filter: TableFilter, others: OtherReaders | None = None) -> None:
        self._store, self._others = store, others
        self._server_filter = server_filter
        self._captured = CapturedTables([server_filter])
        self._thinning = Thinning()
        self._open = False  # events were put whose transaction has not ended
        self.accepting_since = 0.0  # of the block in hand; 0: none is
        self._held_back: Block | None = None  # the last empty transaction that was thinned out

    def narrow(self, client_filter: str) -> None:
        """From the next block on, keep only tables that match the client's patterns too; an empty text takes nothing away."""
        self._captured = CapturedTables([self._server_filter, TableFilter(client_filter)])

    def accept(self, block: Block) -> None:
        """Takes one block, in stream order; see `contracts.BlockSink`. Raises InterruptedError when interrupted while it waits."""
        kept = self._filtered(block)
        self.accepting_since = time.monotonic()
        try:
            self._accept(kept)
        finally:
            self.accepting_since = 0.0

    @property
    def held_up(self) -> bool:
        """Whether a block has waited for room in the store for a while: readers beside it get nothing new."""
        since = self.accepting_since
        return since > 0 and time.monotonic() - since > HELD_UP_SECONDS

    def _accept(self, kept: Block) -> None:
        if self._others is not None:
            self._others.put(kept)  # never waits
        if kept.event_count or kept.changes:
            self._put(kept)
        elif kept.transaction_count and self._open:
            self._put(without_events(kept))  # the end of a transaction whose events are in the store: never thinned out
        elif kept.transaction_count:
            self._accept_empty(kept)

    def idle(self) -> None:
        """The stream has caught up and is silent: hand on the last thinned-out transaction, so that the cursor reaches the end."""
        if self._held_back is not None:
            self._put(self._held_back)

    def interrupt(self) -> None:
        """The connection is gone: its open transaction comes again, so what was put of it is forgotten and waits end."""
        self._open, self._held_back = False, None
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
        self._held_back = None
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
            self._held_back = empty
