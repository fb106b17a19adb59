"""Defines the protocols between the parts of an engine. `instance.engine.wiring` chooses the implementations. Tests check each one.

The parser's thread calls `BlockSink`, `PreparedTransactions` and `SchemaHistory`. One thread of `hand_out` calls `Stager`. Any thread
calls `EventStore` and `Lease`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from sluice.batch_manifest.values import Cascade
from sluice.cdc_engine.contracts import (
    NO_SESSION,
    Batch,
    Block,
    Holder,
    OutstandingBatch,
    Staged,
    StatementSession,
    StoreMetrics,
    TableChange,
    TableVersion,
)
from sluice.cdc_engine.position import Position


class BlockSink(Protocol):
    """Accepts the parser's blocks. `sink` implements it."""

    def accept(self, block: Block) -> None:
        """Accepts one block, in stream order. Waits while the store is full. Raises InterruptedError if `interrupt` is called meanwhile."""

    def interrupt(self) -> None:
        """Drops the open transaction, whose events arrive again, and ends a wait. The parser calls it when it drops its connection."""


class EventStore(Protocol):
    """Stores the events between the stream and the batches. Its cursors are put ≥ get ≥ ack.

    One thread puts. If another thread calls `drop_open_transaction` or `clear`, the puts of this thread raise InterruptedError, until it
    calls `drop_open_transaction` itself before it opens a new connection. Otherwise it could append the rest of a transaction whose
    beginning was dropped.
    """

    def put(self, block: Block) -> None:
        """Appends a block. Waits while the store is full. If the open transaction alone fills the ring, it goes to disk instead."""

    def get(self, byte_count_max: int, event_count_max: int, timeout_seconds: float = 0.0) -> Batch:
        """Returns the next whole transactions after the last get: at least one, if one is complete. batch_id is 0, because the ledger
        assigns ids, or -1 if there is nothing.
        """

    def ack(self, end: Position) -> None:
        """Frees everything up to `end`, where a batch that was handed out must end."""

    def rollback(self) -> None:
        """Makes the next get start after the last ack."""

    def go_back(self, position: Position) -> bool:
        """Makes everything after `position` available again, also acked events. Returns False and changes nothing if the store no longer
        has all of it.
        """

    def drop_open_transaction(self) -> None:
        """Drops the events after the last end of a transaction. The connection was lost, so they arrive again."""

    def clear(self) -> None:
        """Drops everything. The parser starts again at the acked position."""

    @property
    def acked_position(self) -> Position | None:
        """The position before the content: the last ack, or where the parser started. A rollback goes back no further."""

    @property
    def put_position(self) -> Position | None:
        """The end of the last whole transaction that was put. A new connection can continue there."""

    @property
    def oldest_time_us(self) -> int:
        """When the first transaction without an ack was committed, in µs since 1970. 0 if all are acked."""

    def metrics(self) -> StoreMetrics:
        """Returns the current metrics."""

    def start_at(self, position: Position) -> None:
        """Drops everything. The parser starts again at `position`, where the next batch begins."""

    def take_back(self) -> None:
        """Undoes the last get, whose batch could not be recorded in the ledger."""


class Content(Protocol):
    """Bytes of binlog events that are read piece by piece. `size` is their number."""

    size: int

    def read_into(self, space: memoryview) -> int:
        """Reads the next bytes into `space`, as many as fit. Returns their number, or 0 at the end. Raises BinlogFormatError if they
        cannot be read.
        """


class PreparedTransactions(Protocol):
    """Stores the events of prepared XA transactions until they are committed or rolled back, by XA name. One transaction at a time is
    recorded.
    """

    def begin(self) -> None:
        """Begins to record a transaction. Drops a recording that was not prepared."""

    def record(self, event: bytes) -> None:
        """Adds a whole event, without checksum."""

    def recorded(self) -> Content:
        """Returns the events that were recorded since `begin`, for a transaction that commits without XA PREPARE."""

    def prepare(self, name: str, order_key: int) -> None:
        """Keeps the recorded transaction under this name, and replaces an earlier one. `order_key` is that of its prepare."""

    def commit(self, name: str, order_key: int) -> Content | None:
        """Returns the events of a transaction, or None if it is unknown. `order_key` is that of its commit, which may be read again after
        a restart.
        """

    def roll_back(self, name: str) -> None:
        """Drops the transaction, if it is known."""

    def rewind(self, position: Position) -> None:
        """Prepares for a stream that starts again after `position`. Transactions that were prepared later are dropped, and recorded again
        when they arrive. Those that were committed later are prepared again, and their commit may arrive with another order key.
        """


class Stager(Protocol):
    """Converts a batch to files that a run can merge, with the settings of one destination. `staging` implements it."""

    def __call__(self, batch: Batch, record: OutstandingBatch, more: Callable[[Batch], Batch]) -> Staged:
        """Stages `batch` as the delivery of `record`. The files are on disk, in a directory of their own, when it returns. After
        each part that was staged, calls `more` with it to get the next part, or an empty batch if there is none.

        The same batch gives the same files. After a SluiceError no files are left, and the batch can be staged again.
        """


class SchemaHistory(Protocol):
    """The schemas at the position that is being read. `table_meta` implements it for the parser."""

    def resolve(self, table_map: Any, position: Position) -> TableVersion:
        """Returns names and types for a table map event at a position. Raises TableStoppedError if they are unknown, if they do not fit,
        or if the table is stopped. If consumers still read the table's rows, the error has the version for them.
        """

    def apply(
        self, statement: str, default_database: str, position: Position, session: StatementSession = NO_SESSION
    ) -> tuple[TableChange, ...]:
        """Applies a DDL statement in stream order, and saves it. Returns the changes of captured tables that the lake must follow."""

    def cascades(self, database: str, table: str) -> tuple[Cascade, ...]:
        """Returns the foreign keys by which rows of captured tables change when rows of this table change, at the current position of the
        stream.
        """

    def follows(self, database: str, table: str) -> bool:
        """Returns whether foreign keys change rows of this table when rows of other tables change, at the current
        position of the stream.
        """

    def rewind(self, position: Position) -> None:
        """Drops everything after `position`, where the stream starts again."""


class Lease(Protocol):
    """The right of this process to read a destination's binlog and write its ledger. One process at a time has it."""

    @property
    def token(self) -> int:
        """While the lease is held, a number above that of every earlier holder. Otherwise 0."""

    def try_acquire(self) -> bool:
        """Acquires the lease if nobody holds it or its holder died. Does not wait. Returns whether this process holds it."""

    def holder(self) -> Holder | None:
        """Returns the process that holds the lease or held it last, or None if nobody ever did."""

    def check(self) -> None:
        """Raises LeaseLostError if this process does not hold the lease."""

    def release(self) -> None:
        """Releases the lease, if it is held."""
