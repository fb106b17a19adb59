"""Takes the batches of a destination from the store, and settles them: writes an ack or a rollback to the ledger, then to the store.

`hand_out` calls this module, and records a batch in the ledger after the batch is staged. If the process ends before that, no record of the
batch remains, and the next start reads the stream from the ledger's position.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from sluice.cdc_engine.contracts import NOTHING, Batch, OutstandingBatch
from sluice.cdc_engine.errors import CanalServiceError, NotContinuousError, NotStartedError, SluiceError
from sluice.cdc_engine.meta.ledger import READ_AGAIN, Ledger
from sluice.cdc_engine.meta.manager import MetaManager, Transition
from sluice.cdc_engine.ports import EventStore
from sluice.cdc_engine.position import Position


class StreamBatches:
    """The batches of one destination, as whole transactions. Thread-safe. `get` and `rollback` hold the lock `_taking`; `ack` and
    `rollback` hold the lock `_settling`. So an ack never waits for a get.

    `rewind` empties the store, and restarts the parser and the store at a position. It is called if a rollback needs changes that the store
    no longer has, or if the store does not continue at the ledger's position.
    """

    def __init__(
        self, destination: str, store: EventStore, meta: MetaManager, rewind: Callable[[Position | None], None]
    ) -> None:
        self._destination, self._store, self._meta, self._rewind = destination, store, meta, rewind
        self._stopped = False
        self._owed = False  # Whether a call of `rewind` failed and must be repeated.
        self._taken_to: Position | None = None  # The end of the last batch or part that was taken from the store.
        self._was_elsewhere = False  # Whether the store was not at the ledger's position at the last get.
        self._taking, self._settling = threading.RLock(), threading.RLock()

    @property
    def position(self) -> Position | None:
        """The end of all changes that were taken from the store: the end of the batch that is being staged, or else the ledger's
        `resume_position`.
        """
        found = [each for each in (self._taken_to, self._meta.ledger.resume_position) if each is not None]
        return max(found, key=lambda each: each.order_key, default=None)

    def stop(self) -> None:
        """Makes later calls raise NotStartedError. Does not change the ledger."""
        self._stopped = True

    def get(self, byte_count_max: int, event_count_max: int, timeout_seconds: float = 0.0) -> Batch:
        """Takes the next batch from the store. The caller stages it, and then records it in the ledger, or calls `put_back`. The batch has
        whole transactions: as many as fit into `byte_count_max` bytes and `event_count_max` row events, but at least one. If no change
        arrives within `timeout_seconds`, the result's batch_id is -1.

        A batch whose `slices` are empty has no captured changes, but its end moves the cursor (`skip`). If the store's next changes do not
        begin at the ledger's position, for example after a failed rewind, restarts the reading at the ledger's position, and returns an
        empty batch with batch_id -1. Raises NotContinuousError if this happens in two successive calls.
        """
        self._require_started()
        with self._taking:
            if self._owed:
                self._start_again()
            batch = self._store.get(byte_count_max, event_count_max, timeout_seconds)
            if batch.end is None:
                return NOTHING
            try:
                self._meta.ledger.next_batch(batch.end, batch.start)
            except SluiceError as error:
                self._store.take_back()
                if not isinstance(error, NotContinuousError):
                    raise
                self._went_elsewhere(error)
                return NOTHING
            self._was_elsewhere, self._taken_to = False, batch.end
            return batch

    def get_more(
        self,
        taken: Batch,
        byte_count_max: int,
        event_count_max: int,
        timeout_seconds: float = 0.0,
        *,
        kept: bool = False,
    ) -> Batch:
        """Returns the changes after `taken` as a further part of the same batch. `taken` is the result of the previous `get` or `get_more`.
        The result has as many whole transactions as fit into `byte_count_max` bytes and `event_count_max` row events, but at least one. The
        result's batch_id is -1 if no change arrives within `timeout_seconds`. It is also -1 if a new epoch begins, or if `taken` or the
        next part must be a batch of its own (`Batch.stands_alone`).

        The caller has written `taken` to files. With `kept`, the store keeps the changes of `taken`. Without `kept`, the store removes
        these changes, so that a batch can be larger than the ring. If such a batch is rolled back, the source is read again. Raises
        NotContinuousError if the store's next changes are not after `taken`.
        """
        self._require_started()
        if taken.end is None:
            raise CanalServiceError("changes cannot be appended to an empty batch: get a batch first")
        if taken.stands_alone:
            return NOTHING
        with self._taking:
            if not kept:
                self._store.ack(taken.end)
            part = self._store.get(byte_count_max, event_count_max, timeout_seconds)
            if part.end is not None and (part.end.epoch != taken.end.epoch or part.stands_alone):
                self._store.take_back()
                return NOTHING
            if part.end is not None and part.end.order_key <= taken.end.order_key:
                self._store.take_back()
                raise NotContinuousError(
                    f"changes up to {part.end} cannot follow the changes up to {taken.end} in a batch: {READ_AGAIN}"
                )
            self._taken_to = part.end or self._taken_to
            return part

    def put_back(self) -> None:
        """Gives the changes of a batch that is not recorded in the ledger back to the store, so that the next get returns them again. No
        other batch may be in flight. If the store has removed some of the changes, restarts the reading at the ledger's position.
        """
        self._require_started()
        with self._taking, self._settling:
            self._go_back(self._meta.ledger.cursor)

    def skip(self, batch: OutstandingBatch) -> None:
        """Moves the cursor to the end of a batch that has no changes for the lake: hands the batch out and acks it, in one write of the
        ledger. Then frees the batch's changes in the store. Raises NotContinuousError if the batch does not begin at the end of the last
        batch, and MetaError if the ledger cannot be written.
        """
        self._settle(lambda ledger: ledger.hand_out(batch).ack(batch.batch_id))

    def append_to(self, taken: Batch, byte_count_max: int, event_count_max: int, keep: Callable[[Batch], bool]) -> None:
        """Calls `keep` with the changes that follow the last batch `taken`, so that `keep` can record these changes and `taken` in the
        ledger as one batch. Does not wait for changes. Does not call `keep` if there are none, if they belong to another epoch, or if they
        must be a batch of their own. If `keep` returns False or raises an error, the changes are handed out later.
        """
        self._require_started()
        with self._taking, contextlib.ExitStack() as undo:
            part = self._store.get(byte_count_max, event_count_max, 0.0)
            if part.end is None or taken.end is None:
                return
            undo.callback(self._take_back)
            self._taken_to = part.end
            if part.end.epoch == taken.end.epoch and not part.stands_alone and keep(part):
                undo.pop_all()

    def _take_back(self) -> None:
        self._store.take_back()
        self._taken_to = None

    def ack(self, batch_id: int, delivery: int | None = None) -> None:
        """Acks a batch: moves the cursor in the ledger to the end of the batch, and then frees the batch's changes in the store. If
        `delivery` is given, the batch must have this delivery number.

        Raises BatchNotFoundError if the batch does not wait for an ack, and BatchNotFirstError if an earlier batch waits. Raises MetaError
        if the ledger cannot be written. The batch then still waits for its ack.
        """
        self._settle(lambda ledger: ledger.ack(batch_id, delivery))

    def _settle(self, transition: Transition) -> None:
        self._require_started()
        with self._settling:
            ledger = self._meta.update(transition)
            if ledger.cursor is not None:
                self._store.ack(ledger.cursor)

    def rollback(self, batch_id: int | None = None, delivery: int | None = None) -> None:
        """Rolls back all batches in flight. The changes of these batches are handed out again under new ids, perhaps in batches of other
        sizes. Waits for a get that is in progress.

        If `batch_id` is given, it must be the id of the first batch in flight. If `delivery` is given too, it must be the number of this
        batch's last delivery. Raises BatchNotFoundError or BatchNotFirstError otherwise. If the store does not have the changes, for
        example after a restart, restarts the reading at the cursor.
        """
        self._require_started()
        with self._taking, self._settling:
            ledger = self._meta.update(lambda ledger: _rolled_back(ledger, batch_id, delivery))
            self._go_back(ledger.cursor)

    def _go_back(self, cursor: Position | None) -> None:
        self._taken_to = None
        if cursor is None or self._store.go_back(cursor):
            self._store.rollback()
        else:
            self._start_again()

    def read_again(self) -> None:
        """Restarts the reading of the stream at the ledger's position. The caller must make sure that no batch is in flight. Raises the
        errors of `rewind`. After an error, the next get first calls `rewind` again.
        """
        self._require_started()
        with self._taking, self._settling:
            self._start_again()

    def _start_again(self) -> None:
        """Restarts the reading of the stream at the end of the ledger's last batch in flight, or at the cursor if no batch is in flight. If
        the restart fails, `_owed` stays set, so that the next get repeats it first.
        """
        self._owed, self._taken_to = True, None
        self._rewind(self._meta.ledger.resume_position)
        self._owed = False

    def _went_elsewhere(self, error: NotContinuousError) -> None:
        """Restarts the reading of the stream at the ledger's position (`_start_again`), because the store is at another position. Then
        raises `error` if the previous `get` also found the store at another position.
        """
        self._start_again()
        if self._was_elsewhere:
            raise error
        self._was_elsewhere = True

    def _require_started(self) -> None:
        if self._stopped:
            raise NotStartedError(f"the destination {self._destination} is not started: start the destination first")


def _rolled_back(ledger: Ledger, batch_id: int | None, delivery: int | None) -> Ledger:
    return ledger.rollback() if batch_id is None else ledger.rollback_one(batch_id, delivery)
