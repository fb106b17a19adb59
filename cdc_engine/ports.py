"""What the parts of an engine promise each other, as protocols. `instance.wiring` chooses who keeps them; tests/ hold each promise.

What may be called from which thread: the parser's thread calls `BlockSink`, `PreparedTransactions` and `SchemaHistory`; one thread of
`hand_out` calls `Stager`; any thread calls `EventStore` and `Lease`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from cdc_engine.contracts import (
    NO_SESSION,
    Batch,
    Block,
    Cascade,
    Holder,
    OutstandingBatch,
    Staged,
    StatementSession,
    StoreMetrics,
    TableChange,
    TableVersion,
)
from cdc_engine.position import Position


class BlockSink(Protocol):
    """Where the parser puts its blocks; `sink` implements it."""

    def accept(self, block: Block) -> None:
        """Takes one block, in stream order. Waits while the store is full. Raises InterruptedError once `interrupt` was called."""

    def interrupt(self) -> None:
        """The parser drops its connection: forget the open transaction (its events come again) and end any wait."""


class EventStore(Protocol):
    """What waits between the stream and the batches. Cursors: put ≥ get ≥ ack.

    One thread puts. `drop_open_transaction` or `clear` from another thread fences the putting one off: its puts raise InterruptedError
    until it calls `drop_open_transaction` itself, on its way to a new connection; else the rest of a transaction whose beginning was just
    forgotten could still be appended.
    """

    def put(self, block: Block) -> None:
        """Appends; waits while full, unless the one open transaction alone fills the ring: then it goes to disk."""

    def get(self, byte_count_max: int, event_count_max: int, timeout_seconds: float = 0.0) -> Batch:
        """The next whole transactions after the last get, at least one if any is complete; batch_id 0 (the ledger gives ids) or -1."""

    def ack(self, end: Position) -> None:
        """Frees everything up to `end`, which must be the end of a batch handed out."""

    def rollback(self) -> None:
        """The next get starts after the last ack again."""

    def go_back(self, position: Position) -> bool:
        """Whether all that follows `position` is still here; then a rollback goes back no further than that."""

    def drop_open_transaction(self) -> None:
        """Forget events after the last transaction end: the connection was lost and they come again."""

    def clear(self) -> None:
        """Forget everything; the parser starts again from the acked position."""

    @property
    def acked_position(self) -> Position | None:
        """Where the content begins: the last ack, or the position the parser started from. A rollback goes no further back."""

    @property
    def put_position(self) -> Position | None:
        """The end of the last whole transaction put: where a new connection goes on without loss."""

    @property
    def oldest_time_us(self) -> int:
        """Commit time of the first transaction that is not acked, in microseconds since 1970; 0 when all is acked."""

    def metrics(self) -> StoreMetrics:
        """Figures of this moment."""

    def start_at(self, position: Position) -> None:
        """Forget everything; the parser starts again from `position`, which is the next batch's start."""

    def take_back(self) -> None:
        """Undoes the last get, which is not acked: its batch could not be entered into the ledger."""


class Content(Protocol):
    """Bytes of binlog events, read piece by piece. `size`: how many there are."""

    size: int

    def read_into(self, space: memoryview) -> int:
        """The next bytes, at most as many as there is room for, and how many; 0 at the end. Raises BinlogFormatError."""


class PreparedTransactions(Protocol):
    """The events of XA transactions that are prepared and not decided yet, by XA name; one at a time is being recorded."""

    def begin(self) -> None:
        """A transaction begins; what was recorded of one that was not prepared is forgotten."""

    def record(self, event: bytes) -> None:
        """A whole event without checksum."""

    def recorded(self) -> Content:
        """What was recorded since `begin`: it commits without having been prepared."""

    def prepare(self, name: str, order_key: int) -> None:
        """The recorded transaction waits for its decision under this name, in place of another one. `order_key`: of its prepare."""

    def commit(self, name: str, order_key: int) -> Content | None:
        """Its events, None when it is not known. `order_key`: of the commit, which may be read again after a restart."""

    def roll_back(self, name: str) -> None:
        """Forget it, if it is known."""

    def rewind(self, position: Position) -> None:
        """The stream begins again after `position`: what was prepared after it is forgotten, and recorded anew when it comes; what was
        committed after it is prepared, and its commit may come under another order key.
        """


class Stager(Protocol):
    """Makes files of a batch that a run can merge, with the settings of one destination; `staging` is behind it."""

    def __call__(self, batch: Batch, record: OutstandingBatch, more: Callable[[Batch], Batch]) -> Staged:
        """Stages `batch` as the delivery of `record`. On disk, and of its own name, when it returns.

        `more`: called with each part that is staged, gives the part that follows it, or an empty batch after the last. The same batch gives
        the same files. Raises SluiceError; nothing is left then, and the batch can be staged again.
        """


class SchemaHistory(Protocol):
    """The schema at the position being read; `table_meta` implements it for the parser."""

    def resolve(self, table_map: Any, position: Position) -> TableVersion:
        """Names and types for a table map event at a position. Raises TableStoppedError when they cannot be known or do not fit."""

    def apply(
        self, statement: str, default_database: str, position: Position, session: StatementSession = NO_SESSION
    ) -> tuple[TableChange, ...]:
        """Takes a DDL statement in stream order and persists it; the changes of captured tables it means for the lake."""

    def cascades(self, database: str, table: str) -> tuple[Cascade, ...]:
        """What changes of this table's rows set off in captured tables, where the stream is now."""

    def follows(self, database: str, table: str) -> bool:
        """Whether rows of this table change with those of others, where the stream is now."""

    def rewind(self, position: Position) -> None:
        """The stream starts again from here: forget what came after."""


class Lease(Protocol):
    """This process's claim on a destination: one holder reads its binlog and writes its ledger, over all processes."""

    @property
    def token(self) -> int:
        """Above that of every earlier holder while it is held, else 0."""

    def try_acquire(self) -> bool:
        """Takes the lease if nobody holds it, also from a holder that died; never waits. True while this process holds it."""

    def holder(self) -> Holder | None:
        """Who holds it or held it last; None where nobody ever did."""

    def check(self) -> None:
        """Raises LeaseLostError when this process does not hold it."""

    def release(self) -> None:
        """Gives it back; without effect if it is not held."""
