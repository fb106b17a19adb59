"""The ledger of a destination: cursor, batches that wait for their ack, stopped tables, epoch. Pure: each transition gives a new one.

`server` moves it through a `MetaManager`, `instance` sets cursor, epoch and stopped tables, `client` reads it.

    subscribe ─▶ hand_out ─▶ staged ─▶ ack          the cursor moves to the batch's end
                     ▲           └────▶ rollback     all that waits is forgotten and comes again from the cursor

Promises: batch ids and deliveries grow for ever, over rollbacks and restarts. The cursor never moves backward but by `set_cursor`.
Batches are acked in the order in which they were handed out.
"""

from __future__ import annotations

import dataclasses
import itertools

from cdc_engine.contracts import ClientIdentity, OutstandingBatch, StoppedTable
from cdc_engine.errors import BatchNotFirstError, BatchNotFoundError, MetaError
from cdc_engine.position import EPOCH_BITS, Position

EPOCH_MAX = (1 << EPOCH_BITS) - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ledger:
    """`cursor`: the end of the last acked batch, None before the first start. `server_uuid`: the server the cursor was made on."""

    epoch: int = 1
    cursor: Position | None = None
    server_uuid: str = ""
    next_batch_id: int = 1
    next_delivery: int = 1
    clients: tuple[ClientIdentity, ...] = ()
    outstanding: tuple[OutstandingBatch, ...] = ()
    stopped_tables: tuple[StoppedTable, ...] = ()

    @property
    def head(self) -> OutstandingBatch | None:
        """The batch whose ack is next."""
        return self.outstanding[0] if self.outstanding else None

    @property
    def resume_position(self) -> Position | None:
        """Where reading goes on while the outstanding batches stay valid: behind the last of them, else at the cursor."""
        return self.outstanding[-1].end if self.outstanding else self.cursor

    def subscribe(self, client: ClientIdentity) -> Ledger:
        """With the client; one that is known gets its filter replaced."""
        others = tuple(each for each in self.clients if each != client)
        return dataclasses.replace(self, clients=(*others, client))

    def unsubscribe(self, client: ClientIdentity) -> Ledger:
        return dataclasses.replace(self, clients=tuple(each for each in self.clients if each != client))

    def hand_out(self, end: Position, start: Position | None = None) -> Ledger:
        """With a batch (start, end] at the end of the line; `outstanding[-1]` is its record.

        `start` counts only where the ledger knows no position yet. Raises MetaError when the batch would not lie behind the last one,
        or begins so far behind it that changes would be lost in between.
        """
        resume = self.resume_position
        if (
            start is not None
            and resume is not None
            and resume.epoch == start.epoch
            and resume.order_key < start.order_key
        ):
            raise MetaError(
                f"what lies between {resume} and the batch from {start} was not read: restart the engine at its cursor"
            )
        start = resume or start
        if start is None:
            raise MetaError(f"the batch up to {end} has no start: set the destination's position first")
        if end.order_key <= start.order_key:
            raise MetaError(f"the batch up to {end} does not lie behind {start}: restart the engine at its cursor")
        batch = OutstandingBatch(
            batch_id=self.next_batch_id, delivery=self.next_delivery, start=start, end=end, path="", rows=0, bytes=0
        )
        return dataclasses.replace(
            self,
            outstanding=(*self.outstanding, batch),
            next_batch_id=self.next_batch_id + 1,
            next_delivery=self.next_delivery + 1,
        )

    def extended(self, batch_id: int, end: Position) -> Ledger:
        """With the last batch, which is still being staged, reaching up to `end`. Raises CanalServiceError or MetaError."""
        batch = self._outstanding(batch_id, "extended")
        if batch is not self.outstanding[-1] or batch.path:
            raise BatchNotFirstError(f"batch {batch_id} cannot grow: it is staged, or another was handed out behind it")
        if end.epoch != batch.end.epoch or end.order_key <= batch.end.order_key:
            raise MetaError(f"what ends at {end} does not continue the batch up to {batch.end}")
        return dataclasses.replace(self, outstanding=(*self.outstanding[:-1], dataclasses.replace(batch, end=end)))

    def staged(self, batch_id: int, *, path: str, rows: int, size_bytes: int, tables: tuple[str, ...]) -> Ledger:
        """With what was written for an outstanding batch; raises BatchNotFoundError."""
        self._outstanding(batch_id, "staged")
        outstanding = tuple(
            dataclasses.replace(each, path=path, rows=rows, bytes=size_bytes, tables=tables)
            if each.batch_id == batch_id
            else each
            for each in self.outstanding
        )
        return dataclasses.replace(self, outstanding=outstanding)

    def ack(self, batch_id: int) -> Ledger:
        """The head is done: the cursor moves to its end. Raises BatchNotFoundError, or BatchNotFirstError for a later one."""
        batch = self._first(batch_id, "acked")
        return dataclasses.replace(
            self,
            cursor=batch.end,
            server_uuid=batch.end.server_uuid or self.server_uuid,
            outstanding=self.outstanding[1:],
        )

    def rollback(self) -> Ledger:
        """Nothing waits any more: all of it is handed out again, under new ids and deliveries."""
        return dataclasses.replace(self, outstanding=())

    def restarted(self) -> Ledger:
        """As a new process finds it: a batch that was never staged is handed out again, and with it those behind it."""
        staged = tuple(itertools.takewhile(lambda batch: batch.path, self.outstanding))
        return dataclasses.replace(self, outstanding=staged)

    def rollback_one(self, batch_id: int) -> Ledger:
        """As `rollback`, if the batch is the head; the later ones go with it, for they would be handed out behind it again.

        In Canal they stay and can never be acked. Raises BatchNotFoundError, or BatchNotFirstError for a later one.
        """
        self._first(batch_id, "rolled back")
        return self.rollback()

    def stop_table(self, stopped: StoppedTable) -> Ledger:
        """With a table that cannot go on; one that has stopped already keeps its first position and reason."""
        if self.stopped(stopped.database, stopped.table):
            return self
        return dataclasses.replace(self, stopped_tables=(*self.stopped_tables, stopped))

    def restate_stop(self, stopped: StoppedTable) -> Ledger:
        """With another state and reason of a table that has stopped; at its place it stays."""
        there = self.stopped(stopped.database, stopped.table)
        return dataclasses.replace(
            self, stopped_tables=tuple(stopped if each == there else each for each in self.stopped_tables)
        )

    def resume_table(self, database: str, table: str) -> Ledger:
        """Without the stop of a table; raises MetaError when it has not stopped."""
        stopped = self.stopped(database, table)
        if stopped is None:
            raise MetaError(f"the table {database}.{table} has not stopped: nothing is to be resumed")
        return dataclasses.replace(self, stopped_tables=tuple(each for each in self.stopped_tables if each != stopped))

    def stopped(self, database: str, table: str) -> StoppedTable | None:
        """The record of a table's stop."""
        return next((each for each in self.stopped_tables if (each.database, each.table) == (database, table)), None)

    def set_cursor(self, position: Position) -> Ledger:
        """An operator's, or the first start's, choice of where to read from; the only move that may go backward.

        What waits is forgotten, and so are the stops of tables that lie at or behind the position: they are read again.
        """
        kept = tuple(each for each in self.stopped_tables if each.position.order_key < position.order_key)
        return dataclasses.replace(
            self,
            epoch=max(self.epoch, position.epoch),
            cursor=position,
            server_uuid=position.server_uuid or self.server_uuid,
            outstanding=(),
            stopped_tables=kept,
        )

    def grow_epoch(self) -> Ledger:
        """From now on file names count anew (another server, RESET). What waits was staged in its own epoch and stays valid."""
        if self.epoch == EPOCH_MAX:
            raise MetaError(f"epoch {EPOCH_MAX} is the last one: set the destination up anew under another name")
        return dataclasses.replace(self, epoch=self.epoch + 1)

    def _outstanding(self, batch_id: int, verb: str) -> OutstandingBatch:
        for batch in self.outstanding:
            if batch.batch_id == batch_id:
                return batch
        raise BatchNotFoundError(f"batch {batch_id} cannot be {verb}: it does not wait for an ack; get a batch anew")

    def _first(self, batch_id: int, verb: str) -> OutstandingBatch:
        batch, first = self._outstanding(batch_id, verb), self.outstanding[0]
        if batch is not first:
            raise BatchNotFirstError(
                f"batch {batch_id} cannot be {verb} before batch {first.batch_id}: keep their order"
            )
        return batch
