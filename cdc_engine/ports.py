"""Defines the protocols between the parts of an engine. `instance.engine.wiring` chooses the implementations; tests/ check each one.

Threads: the parser's thread calls `BlockSink`, `PreparedTransactions` and `SchemaHistory`; one thread of `hand_out` calls `Stager`; any
thread calls `EventStore` and `Lease`."""

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
        """Accepts one block, in stream order. Waits while the store is full. Raises InterruptedError after a call of `interrupt`."""

    def interrupt(self) -> None:
        """Drops the open transaction, whose events arrive again, and ends any wait. The parser calls it when it drops its connection."""


class EventStore(Protocol):
    """Stores the events between the stream and the batches. Its cursors are put ≥ get ≥ ack.

    One thread puts. If another thread calls `drop_open_transaction` or `clear`, puts of the putting thread raise InterruptedError until it
    calls `drop_open_transaction` itself, on its way to a new connection. Otherwise the rest of a transaction could be appended after its
    beginning was dropped.
    """

    def put(self, block: Block) -> None:
        """Appends a block. Waits while the store is full. If the open transaction alone fills the ring, writes the transaction to disk
        instead.
        """

    def get(self, byte_count_max: int, event_count_max: int, timeout_seconds: float = 0.0) -> Batch:
        """Returns the next whole transactions after the last get, at least one if any is complete. Its batch_id is 0, because the ledger
        assigns ids, or -1 for nothing.
        """

    def ack(self, end: Position) -> None:
        """Frees everything up to `end`, which must be the end of a batch that was handed out."""

    def rollback(self) -> None:
        """Makes the next get start after the last ack."""

    def go_back(self, position: Position) -> bool:
        """Makes everything after `position` available again, including acked events. Returns False if the store no longer has all of it,
        and then changes nothing.
        """

    def drop_open_transaction(self) -> None:
        """Drops the events after the last transaction end: the connection was lost, and they arrive again."""

    def clear(self) -> None:
        """Drops everything. The parser starts again from the acked position."""

    @property
    def acked_position(self) -> Position | None:
        """Returns where the content begins: the last ack, or the position where the parser started. A rollback goes back no further."""

    @property
    def put_position(self) -> Position | None:
        """Returns the end of the last whole transaction that was put. A new connection continues there without loss."""

    @property
    def oldest_time_us(self) -> int:
        """Returns the commit time of the first transaction that is not acked, in microseconds since 1970; 0 if all are acked."""

    def metrics(self) -> StoreMetrics:
        """Returns the current metrics."""

    def start_at(self, position: Position) -> None:
        """Drops everything. The parser starts again from `position`, which is the start of the next batch."""

    def take_back(self) -> None:
        """Undoes the last get, which is not acked: its batch could not be recorded in the ledger."""


class Content(Protocol):
    """Bytes of binlog events that are read piece by piece. `size`: their number."""

    size: int

    def read_into(self, space: memoryview) -> int:
        """Reads the next bytes into `space`, at most as many as fit. Returns their number; 0 at the end. Raises BinlogFormatError."""


class PreparedTransactions(Protocol):
    """The events of prepared XA transactions that are not decided yet, by XA name. One transaction at a time is recorded."""

    def begin(self) -> None:
        """Begins the recording of a transaction. Drops a recording that was not prepared."""

    def record(self, event: bytes) -> None:
        """Adds a whole event, without checksum."""

    def recorded(self) -> Content:
        """Returns the events recorded since `begin`, for a transaction that commits without XA PREPARE."""

    def prepare(self, name: str, order_key: int) -> None:
        """Keeps the recorded transaction under this name until it is decided, and replaces an earlier one. `order_key`: the prepare's."""

    def commit(self, name: str, order_key: int) -> Content | None:
        """Returns the transaction's events; None if it is unknown. `order_key`: the commit's, which may be read again after a restart."""

    def roll_back(self, name: str) -> None:
        """Drops the transaction, if it is known."""

    def rewind(self, position: Position) -> None:
        """Prepares for a stream that starts again after `position`. Transactions that were prepared after it are dropped, and recorded
        again when they arrive. Those that were committed after it become prepared again, and their commit may arrive with another order
        key.
        """


class Stager(Protocol):
    """Turns a batch into files that a run can merge, with the settings of one destination. `staging` implements it."""

    def __call__(self, batch: Batch, record: OutstandingBatch, more: Callable[[Batch], Batch]) -> Staged:
        """Stages `batch` as the delivery of `record`. The files are on disk, under a name of their own, when it returns.

        `more`: called with each part that was staged; returns the part that follows it, or an empty batch after the last. The same batch
        gives the same files. Raises SluiceError; no files are left then, and the batch can be staged again.
        """


class SchemaHistory(Protocol):
    """The schemas at the position that is being read. `table_meta` implements it for the parser."""

    def resolve(self, table_map: Any, position: Position) -> TableVersion:
        """Returns names and types for a table map event at a position. Raises TableStoppedError if they are unknown or do not fit, or if
        the table is stopped. If consumers still read the table's rows, the error contains the version for them.
        """

    def apply(
        self, statement: str, default_database: str, position: Position, session: StatementSession = NO_SESSION
    ) -> tuple[TableChange, ...]:
        """Applies a DDL statement in stream order and persists it. Returns the changes of captured tables that the lake must follow."""

    def cascades(self, database: str, table: str) -> tuple[Cascade, ...]:
        """Returns which rows of captured tables change when rows of this table change, at the current position of the stream."""

    def follows(self, database: str, table: str) -> bool:
        """Returns whether foreign keys change rows of this table when rows of other tables change, at the current position of the
        stream.
        """

    def rewind(self, position: Position) -> None:
        """Drops everything after `position`, at which the stream starts again."""


class Lease(Protocol):
    """This process's claim on a destination. One holder among all processes reads its binlog and writes its ledger."""

    @property
    def token(self) -> int:
        """A number above that of every earlier holder while the lease is held, otherwise 0."""

    def try_acquire(self) -> bool:
        """Acquires the lease if nobody holds it, or if its holder died. Never waits. Returns True while this process holds it."""

    def holder(self) -> Holder | None:
        """Returns the process that holds the lease or held it last; None if it was never held."""

    def check(self) -> None:
        """Raises LeaseLostError if this process does not hold the lease."""

    def release(self) -> None:
        """Releases the lease. Does nothing if it is not held."""
