"""Implements subscribe, get, ack and rollback for the lake, the reader of a destination. The service works as Canal's service, but hands
out whole transactions. Thread-safe. Each method writes the ledger before it changes the store. After a crash between these two steps, the
next start begins at the ledger's position. `instance` calls this service.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterable, Mapping

from sluice.cdc_engine.contracts import NOTHING, Batch, ClientIdentity, OutstandingBatch
from sluice.cdc_engine.errors import (
    CanalServiceError,
    NotContinuousError,
    NotStartedError,
    NotSubscribedError,
    OutstandingBatchError,
    UnknownDestinationError,
)
from sluice.cdc_engine.meta.ledger import Ledger
from sluice.cdc_engine.meta.manager import MetaManager
from sluice.cdc_engine.ports import EventStore
from sluice.cdc_engine.position import Position

Rewind = Callable[[Position | None], None]
FilterChanged = Callable[[str], None]


@dataclasses.dataclass(eq=False)
class ServedDestination:
    """A started destination: its store, its ledger, and its locks. get and rollback hold the lock `taking`; ack and rollback hold the lock
    `settling`. So an ack never waits for a get.

    - `rewind`: empties the store, and restarts the parser and the store at a position. `rewind` is called if a rollback needs changes that
      the store no longer has, or if the store is not at the ledger's position.
    - `owed`: True if a call of `rewind` failed and must be repeated.
    - `was_elsewhere`: True if the store was not at the ledger's position at the last get.
    - `filter_changed`: called with the filter of a client that subscribes.
    """

    store: EventStore
    meta: MetaManager
    rewind: Rewind | None = None
    filter_changed: FilterChanged | None = None
    owed: bool = False
    was_elsewhere: bool = False
    taking: threading.RLock = dataclasses.field(default_factory=threading.RLock)
    settling: threading.RLock = dataclasses.field(default_factory=threading.RLock)

    def start_again(self) -> None:
        """Restarts the reading of the stream at the end of the ledger's last batch in flight. If the restart fails, `owed` stays set, so
        that the next get repeats it first.
        """
        if self.rewind is None:
            raise NotStartedError(
                f"the changes after {self.meta.ledger.resume_position} are no longer in memory: restart the destination"
            )
        self.owed = True
        self.rewind(self.meta.ledger.resume_position)
        self.owed = False

    def went_elsewhere(self, error: NotContinuousError) -> None:
        """Restarts the reading of the stream at the end of the ledger's last batch in flight, because the store is at another position.
        Then raises `error` if the previous get failed in the same way.
        """
        if self.rewind is None:
            raise error
        self.start_again()
        if self.was_elsewhere:
            raise error
        self.was_elsewhere = True


class CanalService:
    """The started destinations, by name. `known` has the names of all destinations in conf/, which may be started later.

    A destination has only one reader. A second client is refused, because the two clients would share one cursor, and each would miss the
    changes that the other client gets.
    """

    def __init__(
        self, parts: Mapping[str, tuple[EventStore, MetaManager]] | None = None, known: Iterable[str] = ()
    ) -> None:
        self._known = set(known)
        self._started: dict[str, ServedDestination] = {}
        for destination, (store, meta) in (parts or {}).items():
            self.start(destination, store, meta)

    def start(
        self,
        destination: str,
        store: EventStore,
        meta: MetaManager,
        *,
        rewind: Rewind | None = None,
        filter_changed: FilterChanged | None = None,
    ) -> None:
        """Adds a destination with its store and ledger. Calls `filter_changed` at once with the filter of each client in the ledger."""
        self._known.add(destination)
        self._started[destination] = ServedDestination(store, meta, rewind, filter_changed)
        for client in meta.ledger.clients:
            if filter_changed is not None:
                filter_changed(client.filter)

    def stop(self, destination: str) -> None:
        """Stops serving a destination. Does not change its ledger. Later calls for the destination raise NotStartedError."""
        self._started.pop(destination, None)

    def subscribe(self, client: ClientIdentity) -> None:
        """Makes the client the destination's reader, or replaces its filter. Raises CanalServiceError if another client is the reader."""
        destination = self._destination(client)
        destination.meta.update(lambda ledger: _subscribed_alone(ledger, client))
        if destination.filter_changed is not None:
            destination.filter_changed(client.filter)

    def unsubscribe(self, client: ClientIdentity) -> None:
        """Removes the reader, and rolls back its batches for the next reader. Does nothing if the client is not subscribed."""
        destination = self._destination(client)
        if client not in destination.meta.ledger.clients:
            return
        self.rollback(client)
        destination.meta.update(lambda ledger: ledger.unsubscribe(client))
        if destination.filter_changed is not None:
            destination.filter_changed("")

    def outstanding(self, client: ClientIdentity) -> tuple[OutstandingBatch, ...]:
        """Returns the batches in flight, in the order in which they must be acked."""
        return self._subscribed(client).meta.ledger.outstanding

    def get_without_ack(
        self, client: ClientIdentity, byte_count_max: int, event_count_max: int, timeout_seconds: float = 0.0
    ) -> Batch:
        """Returns the next batch, which then waits for its ack. Several batches may wait. If no change arrives within `timeout_seconds`,
        the result's batch_id is -1.

        A batch without slices has no captured changes, but its ack moves the cursor. If the store is not at the ledger's position, which
        happens after a failed rewind, hands out nothing and restarts the reading at the ledger's position. Raises NotContinuousError if the
        next get finds the store at another position again.
        """
        destination = self._subscribed(client)
        with destination.taking:
            if destination.owed:
                destination.start_again()
            batch = destination.store.get(byte_count_max, event_count_max, timeout_seconds)
            try:
                entered = self._entered(destination, batch, lambda ledger, end: ledger.hand_out(end, batch.start))
            except NotContinuousError as error:
                destination.went_elsewhere(error)
                return NOTHING
            destination.was_elsewhere = destination.was_elsewhere and entered.empty
            return entered

    def get_more(
        self,
        client: ClientIdentity,
        taken: Batch,
        byte_count_max: int,
        event_count_max: int,
        timeout_seconds: float = 0.0,
        *,
        kept: bool = False,
    ) -> Batch:
        """Returns the changes after `taken` as a further part of the same batch. `taken` is the last batch, or its last part. If there are
        no further changes, the result's batch_id is -1.

        The caller has written `taken` to files. With `kept`, the store keeps the changes of `taken`. Without `kept`, the store removes
        these changes, so that a batch can be larger than the ring. If such a batch is rolled back, the source is read again.
        """
        destination = self._subscribed(client)
        if taken.end is None:
            raise CanalServiceError("changes cannot be appended to an empty batch: get a batch first")
        if taken.stands_alone:
            return NOTHING
        with destination.taking:
            if not kept:
                destination.store.ack(taken.end)
            part = destination.store.get(byte_count_max, event_count_max, timeout_seconds)
            if part.end is not None and (part.end.epoch != taken.end.epoch or part.stands_alone):
                destination.store.take_back()
                return NOTHING
            part = self._entered(destination, part, lambda ledger, end: ledger.extended(taken.batch_id, end))
            return part if part.empty else dataclasses.replace(part, batch_id=taken.batch_id)

    def append_to(
        self,
        client: ClientIdentity,
        taken: Batch,
        byte_count_max: int,
        event_count_max: int,
        keep: Callable[[Batch], bool],
    ) -> None:
        """Calls `keep` with the changes that follow the last batch `taken`, so that `keep` can record these changes and `taken` in the
        ledger as one batch. Does not wait for changes, and does not call `keep` if there are none. If `keep` returns False or raises an
        error, the changes are handed out later.
        """
        destination = self._subscribed(client)
        with destination.taking, contextlib.ExitStack() as undo:
            part = destination.store.get(byte_count_max, event_count_max, 0.0)
            if part.end is None or taken.end is None:
                return
            undo.callback(destination.store.take_back)
            if part.end.epoch == taken.end.epoch and not part.stands_alone and keep(part):
                undo.pop_all()

    def get(
        self, client: ClientIdentity, byte_count_max: int, event_count_max: int, timeout_seconds: float = 0.0
    ) -> Batch:
        """Acks the next batch and then returns it. A change of the batch that the reader does not process is not handed out again. Raises
        OutstandingBatchError if earlier batches wait for their acks, because batches must be acked in order.
        """
        destination = self._subscribed(client)
        with destination.taking, destination.settling:
            waiting = destination.meta.ledger.outstanding
            if waiting:
                raise OutstandingBatchError(
                    f"client {client.client_id} of {client.destination} has not acked batch "
                    f"{waiting[-1].batch_id}: ack or roll back that batch first, because a get with automatic "
                    "ack could lose it"
                )
            batch = destination.store.get(byte_count_max, event_count_max, timeout_seconds)
            batch = self._entered(
                destination, batch, lambda ledger, end: _handed_out_and_acked(ledger, end, batch.start)
            )
            if batch.end is not None:
                destination.store.ack(batch.end)
            return batch

    def ack(self, client: ClientIdentity, batch_id: int, delivery: int | None = None) -> None:
        """Acks a batch: moves the cursor in the ledger to the end of the batch, and then frees the batch's changes in the store. Does
        nothing for batch -1. If `delivery` is given, the batch must have this delivery number.

        Raises BatchNotFoundError if the batch does not wait for an ack, and BatchNotFirstError if an earlier batch waits. Raises MetaError
        if the ledger cannot be written. The batch then still waits for its ack.
        """
        destination = self._subscribed(client)
        if batch_id == -1:
            return
        with destination.settling:
            ledger = destination.meta.update(lambda ledger: ledger.ack(batch_id, delivery))
            if ledger.cursor is not None:
                destination.store.ack(ledger.cursor)

    def rollback(self, client: ClientIdentity, batch_id: int | None = None, delivery: int | None = None) -> None:
        """Rolls back all batches in flight. The changes of these batches are handed out again under new ids, perhaps in batches of other
        sizes. Waits for a get that is in progress.

        If `batch_id` (and `delivery`) is given, it must be the first batch in flight. Otherwise raises BatchNotFoundError or
        BatchNotFirstError. If the store does not have the changes, for example after a restart, `rewind` restarts the reading at the
        cursor. If `rewind` is None, stops the destination and raises NotStartedError.
        """
        destination = self._subscribed(client)
        with destination.taking, destination.settling:
            ledger = destination.meta.update(lambda ledger: _rolled_back(ledger, batch_id, delivery))
            if ledger.cursor is None or destination.store.go_back(ledger.cursor):
                destination.store.rollback()
            elif destination.rewind is not None:
                destination.start_again()
            else:
                self.stop(client.destination)
                raise NotStartedError(
                    f"{client.destination} is rolled back to {ledger.cursor}, and the changes after this "
                    "position are no longer in memory: restart the destination, which then reads from this "
                    "position"
                )

    def read_again(self, client: ClientIdentity) -> None:
        """Restarts the reading of the stream at the ledger's position. The caller must make sure that no batch is in flight. Raises the
        errors of `rewind`. After an error, the next get first calls `rewind` again.
        """
        destination = self._subscribed(client)
        with destination.taking, destination.settling:
            destination.start_again()

    def _entered(
        self, destination: ServedDestination, batch: Batch, transition: Callable[[Ledger, Position], Ledger]
    ) -> Batch:
        """Records the batch in the ledger by `transition`, and returns the batch with its id. If the ledger cannot be written, the store
        takes the batch back, so that the next get hands it out.
        """
        end = batch.end
        if batch.empty or end is None:
            return batch
        with contextlib.ExitStack() as undo:
            undo.callback(destination.store.take_back)
            ledger = destination.meta.update(lambda ledger: transition(ledger, end))
            undo.pop_all()
        return dataclasses.replace(batch, batch_id=ledger.next_batch_id - 1)

    def _destination(self, client: ClientIdentity) -> ServedDestination:
        if client.destination in self._started:
            return self._started[client.destination]
        if client.destination in self._known:
            raise NotStartedError(f"the destination {client.destination} is not started: start the destination first")
        raise UnknownDestinationError(f"the destination {client.destination} does not exist: see conf/destinations")

    def _subscribed(self, client: ClientIdentity) -> ServedDestination:
        destination = self._destination(client)
        if client not in destination.meta.ledger.clients:
            raise NotSubscribedError(
                f"client {client.client_id} does not subscribe to {client.destination}: subscribe first"
            )
        return destination


def _subscribed_alone(ledger: Ledger, client: ClientIdentity) -> Ledger:
    for other in ledger.clients:
        if other != client:
            raise CanalServiceError(
                f"client {client.client_id} cannot read {client.destination}, because client "
                f"{other.client_id} reads it; unsubscribe client {other.client_id} first, or read another "
                "destination on the same source"
            )
    return ledger.subscribe(client)


def _handed_out_and_acked(ledger: Ledger, end: Position, start: Position | None) -> Ledger:
    return ledger.hand_out(end, start).ack(ledger.next_batch_id)


def _rolled_back(ledger: Ledger, batch_id: int | None, delivery: int | None) -> Ledger:
    return ledger.rollback() if batch_id is None else ledger.rollback_one(batch_id, delivery)
