"""Defines the protocols between the parts of an engine. `instance.engine.wiring` chooses the implementations. Tests check each
implementation.

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
    """Accepts the parser's blocks. `sink` implements this protocol."""

    def accept(self, block: Block) -> None:
        """Accepts one block, in stream order. Waits while the store is full. Raises InterruptedError if `interrupt` is called during the
        wait.
        """

    def interrupt(self) -> None:
        """Drops the events of the open transaction, and ends a wait of `accept`. The parser calls this when it drops its connection. The
        next connection delivers the dropped events again.
        """


class EventStore(Protocol):
    """Stores the events of the stream until their batches are acked. The store has three positions in the stream, in this order: all events
    up to the first one are acked, `get` has handed out all events up to the second one, and `put` has appended all up to the third one.

    One thread calls `put`. After another thread has called `drop_open_transaction` or `clear`, `put` raises InterruptedError, so that the
    putting thread cannot append the rest of a transaction whose beginning was dropped. The putting thread then calls
    `drop_open_transaction` itself, which makes `put` work again, and opens a new connection.
    """

    def put(self, block: Block) -> None:
        """Appends a block. Waits while the store is full. If the open transaction alone fills the ring, the transaction is written to disk,
        and `put` does not wait.
        """

    def get(self, byte_count_max: int, event_count_max: int, timeout_seconds: float = 0.0) -> Batch:
        """Returns the complete transactions that follow the last batch of `get`: as many as both limits permit, but at least one. Waits up
        to `timeout_seconds` for a complete transaction. The `batch_id` of the result is -1 if no complete transaction arrived, and
        otherwise 0, because the ledger assigns the ids.
        """

    def ack(self, end: Position) -> None:
        """Removes all events up to `end` from the store. `end` must be the end of a batch that `get` has returned."""

    def rollback(self) -> None:
        """Makes the next `get` start at `acked_position`."""

    def go_back(self, position: Position) -> bool:
        """Makes the next `get` start after `position`, even if events after `position` are acked. Returns False and changes nothing if the
        store no longer has all events after `position`.
        """

    def drop_open_transaction(self) -> None:
        """Drops the events of the open transaction after the connection was lost. The next connection delivers them again."""

    def clear(self) -> None:
        """Drops all events. The parser reads again from `acked_position`."""

    @property
    def acked_position(self) -> Position | None:
        """The position before the first event that is not acked: the end of the last acked batch, or the position at which the parser
        started. `rollback` goes back to it.
        """

    @property
    def put_position(self) -> Position | None:
        """The end of the last whole transaction that was put. A new connection can continue from this position."""

    @property
    def oldest_time_us(self) -> int:
        """The commit time of the first transaction that is not acked, in µs since 1970. 0 if all transactions are acked."""

    def metrics(self) -> StoreMetrics:
        """Returns the current metrics."""

    def start_at(self, position: Position) -> None:
        """Drops all events. The parser reads again from `position`, where the next batch begins."""

    def take_back(self) -> None:
        """Undoes the last `get`. Called if the batch of this `get` could not be recorded in the ledger."""


class Content(Protocol):
    """Bytes of binlog events that are read piece by piece. `size` is the number of bytes."""

    size: int

    def read_into(self, space: memoryview) -> int:
        """Reads the next bytes into `space`, as many as fit. Returns how many bytes were read, or 0 at the end. Raises BinlogFormatError if
        the bytes cannot be read.
        """


class PreparedTransactions(Protocol):
    """Stores the events of prepared XA transactions, by XA name, until the transactions are committed or rolled back. Records the events of
    one transaction at a time. `undone` records which row events a later ROLLBACK or ROLLBACK TO of the same transaction undoes. Scans leave
    these row events out.
    """

    undone: Any

    def begin(self) -> None:
        """Begins to record the events of a transaction. Drops the events that were recorded since the last `begin`, unless `prepare` has
        stored them.
        """

    def record(self, event: bytes) -> None:
        """Adds a whole event, without checksum, to the transaction that is being recorded."""

    def recorded(self) -> Content:
        """Returns the events that were recorded since `begin`, for a transaction that commits without XA PREPARE."""

    def prepare(self, name: str, order_key: int) -> None:
        """Stores the recorded transaction under the XA name `name`, and replaces an earlier transaction of the same name. `order_key` is
        the order key of the XA PREPARE.
        """

    def commit(self, name: str, order_key: int) -> Content | None:
        """Returns the events of a prepared transaction, or None if the name is unknown. `order_key` is the order key of the XA COMMIT. The
        events stay stored, because the XA COMMIT may be read again after a restart.
        """

    def roll_back(self, name: str) -> None:
        """Drops the prepared transaction of this name, if there is one."""

    def rewind(self, position: Position) -> None:
        """Restores the transactions that were prepared at `position`. Called when the stream starts again at `position`. Transactions that
        were prepared after `position` are dropped, and recorded again when their events arrive. Transactions that were committed after
        `position` count as prepared again, because their XA COMMIT arrives again, possibly with another order key.
        """


class Stager(Protocol):
    """Converts a batch to files that a run can merge, with the settings of one destination. `staging` implements this protocol."""

    def __call__(self, batch: Batch, record: OutstandingBatch, more: Callable[[Batch], Batch]) -> Staged:
        """Stages `batch` as the delivery that `record` describes. When the call returns, the files are on disk, in a directory of their
        own. `batch` may be only the first part of the delivery. After each part is staged, calls `more` with this part. `more` returns the
        next part, or an empty batch after the last part.

        The same batch gives the same files. If the call raises a SluiceError, no files are left, and the batch can be staged again.
        """


class SchemaHistory(Protocol):
    """The schemas of all tables at the position that the parser reads. `table_meta` implements this protocol."""

    def resolve(self, table_map: Any, position: Position) -> TableVersion:
        """Returns the table with the names and types of its columns for a table map event at a position. Raises TableStoppedError if the
        schema is unknown, if it does not fit the event, or if the table is stopped. If consumers still get the table's rows, the error's
        `version` is the schema with which consumers read these rows.
        """

    def apply(
        self, statement: str, default_database: str, position: Position, session: StatementSession = NO_SESSION
    ) -> tuple[TableChange, ...]:
        """Applies a DDL statement to the schemas, in stream order, and stores the new schemas durably. Returns the changes of captured
        tables that the lake must follow.
        """

    def cascades(self, database: str, table: str) -> tuple[Cascade, ...]:
        """Returns the foreign keys, at the position that the parser reads, through which changes of this table's rows change rows of
        captured tables.
        """

    def follows(self, database: str, table: str) -> bool:
        """Returns whether foreign keys change rows of this table when rows of other tables change. The foreign keys are those at the
        position that the parser reads.
        """

    def is_undone(self, database: str, table: str) -> bool:
        """Returns whether, at the position that the parser reads, a ROLLBACK undoes changes of the table's rows, because the table's
        storage engine has transactions.
        """

    def rewind(self, position: Position) -> None:
        """Drops all schemas after `position`. Called when the stream starts again at `position`."""


class Lease(Protocol):
    """The right of this process to read a destination's binlog and to write its ledger. One process at a time holds this right."""

    @property
    def token(self) -> int:
        """The number of this acquisition, which is greater than the number of every earlier acquisition. 0 while the lease is not held."""

    def try_acquire(self) -> bool:
        """Acquires the lease if no living process holds it. Does not wait. Returns whether this process holds the lease."""

    def holder(self) -> Holder | None:
        """Returns the process that holds the lease or held it last, or None if no process ever held it."""

    def check(self) -> None:
        """Raises LeaseLostError if this process does not hold the lease."""

    def release(self) -> None:
        """Releases the lease, if it is held."""
