"""Defines the ledger of a destination (cursor, batches in flight, stopped tables, epoch) and its transitions. Pure: each transition returns
a new ledger.

`instance` applies the transitions through a `MetaManager`. `destination_files` reads the ledger.

    subscribe ─▶ hand_out ─▶ taken ─▶ ack        the cursor moves to the batch's end
                    ▲          ├────▶ redeliver  the same staged files again, under a new delivery
                    │          └────▶ rollback   all batches in flight are removed; their changes are handed out again

A batch is added to the ledger when it is handed out, after it was staged. The end of a batch in flight is fixed, unless the batch is
`appendable`. The run of an appendable batch takes the batch before the merge, and this fixes the end.

Guarantees: batch ids, delivery numbers and the epoch only rise, even over rollbacks and restarts. Only `set_cursor` can move the cursor
backward. Batches are acked in the order in which they were handed out. Each batch begins exactly at the end of the previous batch.

When the run of a staged batch has failed, some of the batch's tables may be merged and others not. The batch is merged again from the same
files (`redeliver`), so the source need not have the batch's changes any more.

If the files are missing, the batch's changes are read from the source again. A Delta table without key columns recognizes by their order
keys the changes that it already has. In a new epoch, the same changes would get other order keys, and the table would have them twice. So
`given_up` records the batch's end, and no new epoch begins until the changes are acked. The same holds for the changes that are read again
because a stopped table was resumed: `again_up_to` records their end.
"""

from __future__ import annotations

import dataclasses
import itertools
import uuid
from collections.abc import Callable, Collection

from sluice.cdc_engine.contracts import ClientIdentity, Consumer, OutstandingBatch, StoppedTable
from sluice.cdc_engine.errors import (
    BatchNotFirstError,
    BatchNotFoundError,
    CanalServiceError,
    MetaError,
    NotContinuousError,
)
from sluice.cdc_engine.position import EPOCH_BITS, GroupPosition, Position
from sluice.cdc_engine.states import UNTIL_RESUMED, TableState, table_follows

EPOCH_MAX = (1 << EPOCH_BITS) - 1
LEDGER_ID_CHARS = 12
READ_AGAIN = "the engine reads the stream again from the ledger's position; to start this immediately, run `sluice down` and `sluice up`"


def born_id() -> str:
    """Returns a random id for a new ledger."""
    return uuid.uuid4().hex[:LEDGER_ID_CHARS]


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupConsumer:
    """The ledger's record of a group's consumer. Differs from `Consumer` in the cursor, which has a position for each member of the group.
    An ack moves all positions at once.
    """

    client_id: int
    filter: str = ""
    cursor: GroupPosition
    identity: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ledger:
    """The durable state of a destination.

    - `ledger_id`: set when the ledger is created. Run keys, tags and Delta's application ids contain it.
    - `epoch`: the highest epoch so far.
    - `cursor`: the end of the last acked batch, or None before the first start. `server_uuid`: the server to whose binlog the cursor
      belongs.
    - `next_batch_id`, `next_delivery`: the numbers that the next batch and the next delivery get.
    - `clients`: one entry, the identity under which the lake reads the destination. Empty before the lake has subscribed. `consumers`: all
      other consumers. `group_consumers`: used only in the ledger of a group.
    - `outstanding`: the batches in flight, in the order in which they must be acked.
    - `given_up`: the end of a staged batch that may be merged in part and whose files are missing. Set until the batch's changes are read
      again and acked.
    - `again_up_to`: the position up to which the stream is read again because stopped tables were resumed. Set until the changes up to this
      position are acked.
    """

    ledger_id: str = ""
    epoch: int = 1
    cursor: Position | None = None
    server_uuid: str = ""
    next_batch_id: int = 1
    next_delivery: int = 1
    clients: tuple[ClientIdentity, ...] = ()
    outstanding: tuple[OutstandingBatch, ...] = ()
    stopped_tables: tuple[StoppedTable, ...] = ()
    given_up: Position | None = None
    again_up_to: Position | None = None
    consumers: tuple[Consumer, ...] = ()
    group_consumers: tuple[GroupConsumer, ...] = ()

    @property
    def head(self) -> OutstandingBatch | None:
        """The first batch in flight, which must be acked next, or None if no batch is in flight."""
        return self.outstanding[0] if self.outstanding else None

    @property
    def resume_position(self) -> Position | None:
        """The position after which the next batch begins: the end of the last batch in flight, or the cursor if no batch is in flight."""
        return self.outstanding[-1].end if self.outstanding else self.cursor

    def subscribe(self, client: ClientIdentity) -> Ledger:
        """Makes a client the destination's reader. If the client is the reader already, replaces its filter. Raises CanalServiceError if
        another client is the reader, because the two clients would share one cursor, and each would miss the changes that the other client
        gets.
        """
        for other in self.clients:
            if other != client:
                raise CanalServiceError(
                    f"client {client.client_id} cannot read {client.destination}, because client "
                    f"{other.client_id} reads it; unsubscribe client {other.client_id} first, or read another "
                    "destination on the same source"
                )
        return dataclasses.replace(self, clients=(client,))

    def consumer(self, client_id: int) -> Consumer | None:
        """Returns the consumer with this number, or None. The lake is not a consumer."""
        return next((each for each in self.consumers if each.client_id == client_id), None)

    def with_consumer(self, consumer: Consumer) -> Ledger:
        """Adds a consumer, or replaces its record."""
        others = tuple(each for each in self.consumers if each.client_id != consumer.client_id)
        ordered = sorted((*others, consumer), key=lambda each: each.client_id)
        return dataclasses.replace(self, consumers=tuple(ordered))

    def group_consumer(self, client_id: int) -> GroupConsumer | None:
        """In the ledger of a group: returns the group's consumer with this number, or None."""
        return next((each for each in self.group_consumers if each.client_id == client_id), None)

    def positions_of(self, member: str) -> tuple[Position, ...]:
        """Returns the positions that the group's consumers have in the stream of one member."""
        found = (each.cursor.of(member) for each in self.group_consumers)
        return tuple(position for position in found if position is not None)

    def with_group_consumer(self, consumer: GroupConsumer) -> Ledger:
        """Adds a consumer of a group, or replaces its record."""
        others = tuple(each for each in self.group_consumers if each.client_id != consumer.client_id)
        ordered = sorted((*others, consumer), key=lambda each: each.client_id)
        return dataclasses.replace(self, group_consumers=tuple(ordered))

    def without_consumer(self, client_id: int) -> Ledger:
        """Removes a consumer of the destination or of the group."""
        return dataclasses.replace(
            self,
            consumers=tuple(each for each in self.consumers if each.client_id != client_id),
            group_consumers=tuple(each for each in self.group_consumers if each.client_id != client_id),
        )

    def next_batch(self, end: Position, start: Position | None = None) -> OutstandingBatch:
        """Returns the record of a batch that is not staged yet, with the next batch id and delivery number. The batch has the changes after
        `start` up to `end`. `hand_out` adds the record to the ledger.

        Raises NotContinuousError if the batch does not begin exactly at `resume_position`, or does not end after its start. Raises
        MetaError if both `start` and `resume_position` are None.
        """
        resume = self.resume_position
        if start is not None and resume is not None and _coordinates(start) != _coordinates(resume):
            raise NotContinuousError(
                f"the batch from {start} does not begin at {resume}, the end of the last batch: {READ_AGAIN}"
            )
        start = resume or start
        if start is None:
            raise MetaError(
                f"the ledger has no cursor, so the batch up to {end} has no start: set the position of the "
                "destination with `sluice position set` first"
            )
        if end.order_key <= start.order_key:
            raise NotContinuousError(f"the batch up to {end} does not end after its start {start}: {READ_AGAIN}")
        return OutstandingBatch(
            ledger_id=self.ledger_id,
            batch_id=self.next_batch_id,
            delivery=self.next_delivery,
            start=start,
            end=end,
            path="",
            rows=0,
            bytes=0,
        )

    def reserve(self) -> Ledger:
        """Uses up the numbers of the next batch, because other programs see these numbers before the batch is handed out. If the batch is
        never handed out, no other batch gets its numbers.
        """
        return dataclasses.replace(self, next_batch_id=self.next_batch_id + 1, next_delivery=self.next_delivery + 1)

    def hand_out(self, batch: OutstandingBatch) -> Ledger:
        """Adds a staged batch to the batches in flight, as `outstanding[-1]`. The batch must have the next batch id and delivery number, or
        the numbers that `reserve` has used up.

        Raises NotContinuousError if the batch does not begin exactly at `resume_position`, or does not end after its start. Raises
        MetaError if the batch is not staged, has no start, or has other numbers.
        """
        due = self.next_batch(batch.end, batch.start)
        ahead = due.batch_id - batch.batch_id
        if ahead not in {0, 1} or due.delivery - batch.delivery != ahead or due.ledger_id != batch.ledger_id:
            raise MetaError(
                f"batch {batch.batch_id} cannot be handed out as delivery {batch.delivery}, because the ledger continues with batch "
                f"{due.batch_id} and delivery {due.delivery}: {READ_AGAIN}"
            )
        if not batch.path:
            raise MetaError(f"batch {batch.batch_id} cannot be handed out, because it is not staged")
        return dataclasses.replace(
            self,
            epoch=max(self.epoch, batch.end.epoch),
            outstanding=(*self.outstanding, dataclasses.replace(batch, first_end=batch.end.order_key)),
            next_batch_id=batch.batch_id + 1,
            next_delivery=batch.delivery + 1,
        )

    def taken(
        self, batch: OutstandingBatch, longer: OutstandingBatch | None = None, start: Position | None = None
    ) -> Ledger:
        """Fixes the end of an appendable batch when the batch's run takes the batch. The end stays as it was staged, or becomes the end of
        `longer`. `longer` is the same batch with appended changes; `start` is the position after which these changes begin.

        Raises BatchNotFoundError if this delivery is no longer in flight. Raises BatchNotFirstError if the end is already fixed, or if
        another batch was handed out after this one. Raises NotContinuousError or MetaError if `longer` does not continue the batch.
        """
        there = self._first(batch.batch_id, "taken", batch.delivery)
        if not there.appendable or len(self.outstanding) > 1:
            raise BatchNotFirstError(
                f"the end of batch {batch.batch_id} cannot be fixed: it is fixed already, or another batch "
                "was handed out after this one"
            )
        taken = dataclasses.replace(there, appendable=False)
        if longer is not None:
            if start is not None and _coordinates(start) != _coordinates(there.end):
                raise NotContinuousError(
                    f"changes from {start} on cannot be appended to the batch, which ends at {there.end}: {READ_AGAIN}"
                )
            if longer.end.epoch != there.end.epoch or longer.end.order_key <= there.end.order_key or not longer.path:
                raise MetaError(
                    f"changes up to {longer.end} cannot be appended to the batch up to {there.end}: the changes must be staged, and end "
                    "after the batch in the same epoch"
                )
            content = {name: getattr(longer, name) for name in ("end", "path", "rows", "bytes", "tables")}
            taken = dataclasses.replace(taken, **content)
        return dataclasses.replace(self, outstanding=(taken,))

    def ack(self, batch_id: int, delivery: int | None = None) -> Ledger:
        """Acks the first batch in flight: removes the batch, and moves the cursor to the batch's end. If `delivery` is given, the batch
        must have this delivery number.

        Raises BatchNotFoundError if the batch or the delivery is not in flight, and BatchNotFirstError if an earlier batch is in flight.
        """
        batch = self._first(batch_id, "acked", delivery)
        reached = batch.end.order_key
        return dataclasses.replace(
            self,
            cursor=batch.end,
            server_uuid=batch.end.server_uuid or self.server_uuid,
            outstanding=self.outstanding[1:],
            given_up=_unless_reached(self.given_up, reached),
            again_up_to=_unless_reached(self.again_up_to, reached),
        )

    def redeliver(self, batch_id: int, delivery: int | None = None, *, without: Collection[str] = ()) -> Ledger:
        """Hands out all batches in flight again, from their staged files and under new delivery numbers. The batches are not appendable any
        more, because they may be merged in part.

        Removes the tables `without` ("database.table") from the batches. These are the tables that have stopped since the staging. Raises
        BatchNotFoundError if the batch or the delivery is not in flight, and BatchNotFirstError if an earlier batch is in flight.
        """
        self._first(batch_id, "delivered again", delivery)
        again = tuple(
            dataclasses.replace(
                batch,
                delivery=self.next_delivery + index,
                tables=tuple(name for name in batch.tables if name not in without),
                appendable=False,
            )
            for index, batch in enumerate(self.outstanding)
        )
        return dataclasses.replace(self, outstanding=again, next_delivery=self.next_delivery + len(again))

    def rollback(self) -> Ledger:
        """Removes all batches in flight. The changes of these batches are handed out again under new ids and delivery numbers. Sets
        `given_up` if one of the batches may be merged in part.
        """
        return self._giving_up(self.outstanding)

    def restarted(self, whole: Callable[[OutstandingBatch], bool]) -> Ledger:
        """Returns the ledger with which a new engine starts. `whole` returns whether the staged files of a batch are complete. Removes the
        first batch in flight whose files are not complete, and all later batches. The changes of the removed batches are handed out again.
        """
        kept = tuple(itertools.takewhile(whole, self.outstanding))
        return dataclasses.replace(self._giving_up(self.outstanding[len(kept) :]), outstanding=kept)

    def _giving_up(self, batches: tuple[OutstandingBatch, ...]) -> Ledger:
        """Removes all batches in flight. Sets `given_up` to the highest end of the batches in `batches` that may be merged in part, unless
        the present `given_up` is higher. An appendable batch cannot be merged in part, because no run has taken it.
        """
        ends = [batch.end for batch in batches if not batch.appendable] + ([self.given_up] if self.given_up else [])
        return dataclasses.replace(
            self, outstanding=(), given_up=max(ends, key=lambda end: end.order_key, default=None)
        )

    def rollback_one(self, batch_id: int, delivery: int | None = None) -> Ledger:
        """Rolls back the first batch in flight, whose id must be `batch_id`. Removes all later batches in flight too, because batches are
        acked in order. (In Canal, the later batches stay and can never be acked.) Raises BatchNotFoundError if the batch or the delivery is
        not in flight, and BatchNotFirstError if an earlier batch is in flight.
        """
        self._first(batch_id, "rolled back", delivery)
        return self.rollback()

    def stop_table(self, stopped: StoppedTable) -> Ledger:
        """Stops a table. If the table is already stopped, the existing stop keeps its position and reason."""
        if self.stopped(stopped.database, stopped.table):
            return self
        return dataclasses.replace(self, stopped_tables=(*self.stopped_tables, stopped))

    def restate_stop(self, stopped: StoppedTable) -> Ledger:
        """Replaces the state and the reason of a table's stop. Raises MetaError if the new state cannot follow the old state."""
        there = self.stopped(stopped.database, stopped.table)
        before = there.state if there else TableState.FLOWING
        if not table_follows(before, stopped.state):
            raise MetaError(
                f"the table {stopped.database}.{stopped.table} is in the state {before}, which cannot change to {stopped.state}"
            )
        return dataclasses.replace(
            self, stopped_tables=tuple(stopped if each == there else each for each in self.stopped_tables)
        )

    def resume_table(self, database: str, table: str) -> Ledger:
        """Removes the stop of a table. Raises MetaError if the table is not stopped."""
        stopped = self.stopped(database, table)
        if stopped is None:
            raise MetaError(f"the table {database}.{table} has not stopped, so it cannot be resumed")
        return dataclasses.replace(self, stopped_tables=tuple(each for each in self.stopped_tables if each != stopped))

    def stopped(self, database: str, table: str) -> StoppedTable | None:
        """Returns the stop of a table, or None if the table is not stopped."""
        return next((each for each in self.stopped_tables if (each.database, each.table) == (database, table)), None)

    def set_cursor(self, position: Position, resumed: Collection[str] = ()) -> Ledger:
        """Sets the cursor at the first start or at an operator's request, so that the stream is read from `position`. No other transition
        can move the cursor backward.

        Removes the batches in flight. Also removes each stop at or after `position`: the stream reads the cause of the stop again, and
        stops the table again. A stop that the stream does not repeat (`states.UNTIL_RESUMED`) is removed only if `resumed` contains its
        table ("database.table").

        If `resumed` is not empty, the lake already has later changes of the other tables, and would get them twice under the order keys of
        a new epoch. So no new epoch may begin until the stream is read again up to the position that it had reached before this call
        (`unfinished`). If `resumed` is empty, a new epoch may begin.
        """
        had = (self.resume_position, self.given_up, self.again_up_to) if resumed else ()
        later = [each for each in had if each is not None and each.order_key > position.order_key]
        kept = tuple(each for each in self.stopped_tables if _stays(each, position, resumed))
        return dataclasses.replace(
            self,
            epoch=max(self.epoch, position.epoch),
            cursor=position,
            server_uuid=position.server_uuid or self.server_uuid,
            outstanding=(),
            stopped_tables=kept,
            given_up=self.given_up if resumed else None,
            again_up_to=max(later, key=lambda each: each.order_key, default=None),
        )

    def begin_epoch(self, epoch: int) -> Ledger:
        """Begins an epoch, because the names of binlog files start again (another server, RESET). Batches in flight keep the epoch in which
        they were handed out, and stay valid.

        Raises MetaError if `epoch` is not above all earlier epochs, or if it is above EPOCH_MAX. Does not check whether `unfinished`
        forbids a new epoch, because the parser checks this when it decides where the stream starts.
        """
        if not self.epoch < epoch <= EPOCH_MAX:
            raise MetaError(
                f"epoch {epoch} cannot follow epoch {self.epoch}: a new epoch must be higher than the last one, and at most {EPOCH_MAX}. "
                "If no epoch is left, create the destination again under another name"
            )
        return dataclasses.replace(self, epoch=epoch)

    def after(self, *, epoch: int, delivery: int) -> Ledger:
        """Raises the epoch to at least `epoch`, and the next delivery number above `delivery`. Used after the ledger was restored from an
        older copy: a lake table then has a higher epoch and delivery number than the ledger. Removes all batches in flight if one of them
        has a lower epoch. The caller must have an operator's permission.
        """
        below = any(batch.end.epoch < epoch for batch in self.outstanding)
        return dataclasses.replace(
            self,
            epoch=max(self.epoch, epoch),
            next_delivery=max(self.next_delivery, delivery + 1),
            outstanding=() if below else self.outstanding,
        )

    @property
    def unfinished(self) -> str:
        """The reason why no new epoch may begin, or "" if a new epoch may begin."""
        if self.given_up is not None:
            why = (
                f"the batch up to {self.given_up} may be merged in part, and the staged files of the batch are missing"
            )
        elif self.again_up_to is not None:
            why = (
                f"the stream is read again up to {self.again_up_to}, because stopped tables were resumed, and the other tables have these "
                "changes already"
            )
        else:
            return ""
        return f"{why}: another server would deliver these changes with other order keys, and tables without a key would have them twice"

    def _outstanding(self, batch_id: int, verb: str) -> OutstandingBatch:
        for batch in self.outstanding:
            if batch.batch_id == batch_id:
                return batch
        raise BatchNotFoundError(
            f"batch {batch_id} cannot be {verb}, because this batch does not wait for an ack; get a new batch"
        )

    def _first(self, batch_id: int, verb: str, delivery: int | None = None) -> OutstandingBatch:
        batch, first = self._outstanding(batch_id, verb), self.outstanding[0]
        if delivery not in {batch.delivery, None}:
            raise BatchNotFoundError(
                f"delivery {delivery} of batch {batch_id} cannot be {verb}: the later delivery "
                f"{batch.delivery} of this batch was handed out"
            )
        if batch is not first:
            raise BatchNotFirstError(
                f"batch {batch_id} cannot be {verb} before batch {first.batch_id}: keep the order of the batches"
            )
        return batch


def _stays(stop: StoppedTable, cursor: Position, resumed: Collection[str]) -> bool:
    if stop.position.order_key < cursor.order_key:
        return True
    return stop.state in UNTIL_RESUMED and stop.name not in resumed


def _unless_reached(position: Position | None, order_key: int) -> Position | None:
    return None if position is not None and order_key >= position.order_key else position


def _coordinates(position: Position) -> tuple[int, str, int]:
    return position.epoch, position.file, position.offset
