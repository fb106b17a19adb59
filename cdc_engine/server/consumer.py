"""Tracks, for one consumer, which changes it got, which it has acked, and which it gets next. The lake is not a consumer:
`instance.batches` serves the lake.

    get ─▶ Delivery waits ─▶ ack       the cursor moves to the end of the delivery's last whole transaction
                    └──────▶ rollback  all waiting deliveries are handed out again, under new ids

A delivery may end within a transaction. So an acked position also has the number of row events of this transaction that were acked, and a
rollback does not repeat these row events. The cursor is always the end of a whole transaction, and a restart begins at the cursor.
`cdc_engine.instance.consumers` defines the class of the positions (`StreamPosition`), and stores the cursor in the ledger.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from sluice.cdc_engine.errors import (
    BatchNotFirstError,
    BatchNotFoundError,
    CanalServiceError,
    ConsumerStoppedError,
    NotSubscribedError,
)
from sluice.cdc_engine.limits import BATCH_EVENTS_MAX

PositionT = TypeVar("PositionT")
Content_co = TypeVar("Content_co", covariant=True)


@dataclasses.dataclass(frozen=True)
class Delivery(Generic[PositionT]):
    """The changes that were handed out to a consumer under one id: all changes after the end of the consumer's previous delivery, up to
    `end`.
    """

    batch_id: int
    end: PositionT


@dataclasses.dataclass(frozen=True)
class DeliveryQueue(Generic[PositionT]):
    """A consumer's deliveries that wait for an ack (`waiting`), in order. The consumer has acked everything up to `acked`. Everything up to
    `taken` was handed out to the consumer, or is excluded by its filter.
    """

    acked: PositionT
    taken: PositionT
    waiting: tuple[Delivery[PositionT], ...] = ()
    next_id: int = 1

    def handed_out(self, end: PositionT) -> DeliveryQueue[PositionT]:
        delivery = Delivery(self.next_id, end)
        return dataclasses.replace(self, taken=end, waiting=(*self.waiting, delivery), next_id=self.next_id + 1)

    def passed(self, end: PositionT) -> DeliveryQueue[PositionT]:
        """Moves `taken` to `end`. Called if the consumer's filter excludes everything between `taken` and `end`. If no delivery waits,
        everything up to `end` counts as acked.
        """
        return dataclasses.replace(self, taken=end, acked=self.acked if self.waiting else end)

    def acked_up_to(self, batch_id: int, who: str) -> DeliveryQueue[PositionT]:
        """Acks the first waiting delivery, whose id must be `batch_id`. Raises BatchNotFoundError if no waiting delivery has the id, and
        BatchNotFirstError if a later delivery has the id. `who` names the consumer in the message.
        """
        # The texts of these errors are Canal's, mistakes included, because programs may compare them (docs/canal.md).
        first = self._first(batch_id, f"ack error , {who} batchId:{batch_id} is not exist , please check")
        rest = self.waiting[1:]
        return dataclasses.replace(self, acked=first.end if rest else self.taken, waiting=rest)

    def rolled_back(self, batch_id: int | None, who: str) -> DeliveryQueue[PositionT]:
        """Removes all waiting deliveries, so that their changes are handed out again. If `batch_id` is given, it must be the id of the
        first delivery. Raises BatchNotFoundError if no waiting delivery has this id, and BatchNotFirstError if a later delivery has it.
        """
        if batch_id is not None:
            self._first(batch_id, f"rollback error, {who} batchId:{batch_id} is not exist , please check")
        return dataclasses.replace(self, taken=self.acked, waiting=())

    def _first(self, batch_id: int, unknown: str) -> Delivery[PositionT]:
        if batch_id not in [each.batch_id for each in self.waiting]:
            raise BatchNotFoundError(unknown)
        if batch_id != self.waiting[0].batch_id:
            raise BatchNotFirstError(f"batchId:{batch_id} is not the firstly:{self.waiting[0].batch_id}")
        return self.waiting[0]


class ConsumerStream(Protocol[PositionT, Content_co]):
    """The filtered stream of one consumer. The consumer can read the stream from any position."""

    @property
    def reads_alone(self) -> bool:
        """Whether this stream has a separate connection to the source (a consumer's own stream)."""

    def take(
        self,
        position: PositionT,
        bytes_max: int,
        timeout_seconds: float,
        given_up: Callable[[], bool],
        *,
        entries_max: int = BATCH_EVENTS_MAX,
    ) -> tuple[Content_co | None, PositionT]:
        """Returns the changes after `position` that the consumer's filter includes, and the position up to which the stream was read. The
        first value is None if the filter includes no change up to this position. If no change has arrived, waits until one
        arrives, `timeout_seconds` have passed or `given_up` returns True. `bytes_max` limits the bytes of row events. `entries_max` limits
        the number of entries; a group's stream ignores it. Raises SluiceError if the stream cannot be read.
        """

    def wake(self) -> None:
        """Makes a `take` that waits call `given_up` at once."""

    def close(self) -> None:
        """Releases the stream. The caller must not call `take` after `close`."""


class PositionCodec(Protocol[PositionT]):
    """Encodes positions as texts that a broker stores with a batch, and compares stored positions with the acked position."""

    def text(self, position: PositionT) -> str:
        """Returns a position as text. Raises SluiceError if the engine does not read the position's stream now."""

    def later(self, acked: PositionT, text: str) -> PositionT | None:
        """Returns the position that `text` encodes if it is after `acked`, otherwise None. Raises SluiceError if the two positions cannot
        be compared.
        """


class ConsumerService(Generic[PositionT, Content_co]):
    """Implements get, ack and rollback for one consumer. Thread-safe. A rollback ends a get that waits. `begin` is the consumer's cursor.
    `codec` is None if no broker stores positions of this consumer.
    """

    def __init__(
        self,
        client_id: int,
        stream: ConsumerStream[PositionT, Content_co],
        begin: PositionT,
        codec: PositionCodec[PositionT] | None = None,
    ) -> None:
        self.client_id = client_id
        self._stream, self._codec = stream, codec
        self._line: DeliveryQueue[PositionT] = DeliveryQueue(begin, begin)
        self._taking, self._settling = threading.Lock(), threading.Lock()
        self._stops = 0  # Counts the calls of `stop_waiting`. A get that waits returns when this number changes.
        self._closed = False
        self.trouble = ""  # Why the last get failed, or empty.
        self.undelivered = ""  # Why a delivery could not be encoded or sent to the consumer's broker, or empty.
        self.waiting_since = 0.0  # When the oldest waiting delivery was handed out, in seconds since 1970.

    @property
    def line(self) -> DeliveryQueue[PositionT]:
        return self._line

    def number_from(self, batch_id: int) -> None:
        """Makes `batch_id` the id of the first delivery. Must be called before the first `get`."""
        self._line = dataclasses.replace(self._line, next_id=batch_id)

    @property
    def reads_alone(self) -> bool:
        """Whether the consumer reads the source over its own connection."""
        return self._stream.reads_alone

    @property
    def acked(self) -> PositionT:
        """The position up to which the consumer has acked everything. A restart begins at the end of the last whole transaction up to this
        position.
        """
        return self._line.acked

    def get(
        self, bytes_max: int, timeout_seconds: float = 0.0, *, entries_max: int = BATCH_EVENTS_MAX
    ) -> tuple[int, Content_co | None]:
        """Returns the id and the content of the next delivery. Returns (-1, None) if no change arrives within `timeout_seconds`, or if
        `stop_waiting`, `rollback` or `close` is called. Raises SluiceError if the stream cannot be read.
        """
        deadline = time.monotonic() + timeout_seconds
        # Reads the counter before it waits for the lock, so that a call of `stop_waiting` during this wait ends this get too.
        stops = self._stops
        with self._taking:
            while not self._closed:
                left = max(0.0, deadline - time.monotonic())
                content, end = self._taken(bytes_max, entries_max, left, lambda: self._stops != stops)
                with self._settling:
                    if content is not None:
                        self._line = self._line.handed_out(end)
                        if len(self._line.waiting) == 1:
                            self.waiting_since = time.time()
                        return self._line.waiting[-1].batch_id, content
                    moved = end != self._line.taken
                    self._line = self._line.passed(end)
                if self._stops != stops or (not moved and time.monotonic() >= deadline):
                    break
        return -1, None

    def ack(self, batch_id: int) -> None:
        """Acks the first waiting delivery. Raises BatchNotFoundError if no waiting delivery has this id, and BatchNotFirstError if a later
        one has it.
        """
        with self._settling:
            self._line = self._line.acked_up_to(batch_id, self._who)
            self.waiting_since = time.time() if self._line.waiting else 0.0

    def rollback(self, batch_id: int | None = None) -> None:
        """Removes all waiting deliveries, so that their changes are handed out again. If `batch_id` is given, it must be the id of the
        first delivery. Raises BatchNotFoundError if no waiting delivery has this id, and BatchNotFirstError if a later one has it.
        """
        self.stop_waiting()
        with self._taking, self._settling:
            self._line = self._line.rolled_back(batch_id, self._who)
            self.waiting_since = 0.0

    def end_text(self, batch_id: int) -> str:
        """Returns the end of a waiting delivery as text that a broker stores, or "" if `codec` is None. Raises BatchNotFoundError if no
        delivery has the id, and NotSubscribedError if this object was closed during the call.
        """
        end = next((each.end for each in self._line.waiting if each.batch_id == batch_id), None)
        if end is None:
            raise BatchNotFoundError(f"{self._who} has no waiting delivery {batch_id}")
        text = self._codec.text(end) if self._codec is not None else ""
        # If this object was closed during the call, `text` may name another consumer, which has this `client_id` now. `end` is not a
        # position of that consumer, so the text must not reach the broker.
        if self._closed:
            raise NotSubscribedError(f"{self._who} was removed (`sluice consumer forget`), or its filter has changed")
        return text

    def continue_after(self, text: str) -> bool:
        """Moves the consumer to the position that a broker stored as `text`. Does nothing if `codec` is None, or if this position is not
        after the acked position. A move drops waiting deliveries. Returns whether the consumer moved. Raises SluiceError if the two
        positions cannot be compared.
        """
        while self._codec is not None and text:
            acked = self._line.acked
            # Holds no lock during the call of `later`, which waits for a lock that all consumers share. A thread that holds the shared lock
            # may be waiting in `close` for a lock of this consumer, so both threads would wait forever.
            later = self._codec.later(acked, text)
            if later is None:
                return False
            if self._moved(acked, later):
                return True
        return False

    def _moved(self, compared: PositionT, later: PositionT) -> bool:
        """Moves the consumer to `later`, if its acked position is still `compared`. Returns whether the consumer moved."""
        with self._taking, self._settling:
            if self._line.acked != compared:
                return False
            self._line = DeliveryQueue(later, later, next_id=self._line.next_id)
            self.waiting_since = 0.0
        return True

    def stop_waiting(self) -> None:
        """Makes a waiting get return without a delivery."""
        self._stops += 1
        self._stream.wake()

    def close(self) -> None:
        """Ends a waiting get and closes the stream. Later gets return nothing."""
        self._closed = True
        self.stop_waiting()
        with self._taking:
            self._stream.close()

    @property
    def _who(self) -> str:
        return f"clientId:{self.client_id}"

    def _taken(
        self, bytes_max: int, entries_max: int, timeout_seconds: float, given_up: Callable[[], bool]
    ) -> tuple[Content_co | None, PositionT]:
        try:
            taken = self._stream.take(self._line.taken, bytes_max, timeout_seconds, given_up, entries_max=entries_max)
        except ConsumerStoppedError as error:
            self.trouble = str(error)
            raise
        except CanalServiceError:
            raise
        except Exception as error:
            self.trouble = str(error)
            raise
        self.trouble = ""
        return taken
