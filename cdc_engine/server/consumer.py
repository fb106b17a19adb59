"""Tracks one consumer of a destination other than the lake: what was handed out to it, what it has acked, and what it gets next. Pure
except for its locks.

    get ─▶ Delivery waits ─▶ ack       the cursor moves to the end of the last whole transaction in it
                    └──────▶ rollback  all waiting deliveries are handed out again, under new ids

A delivery may end inside a transaction. Its ack is then remembered by row events (`Place`), so that a rollback goes back no further than
necessary, while the cursor, with which a restart begins, stays at the end of the last transaction (canal.md §4). This module does not
know how the consumer uses a delivery. `cdc_engine.instance.consumers` keeps the cursor in the ledger."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from sluice.cdc_engine.errors import BatchNotFirstError, BatchNotFoundError, CanalServiceError, ConsumerStoppedError

PositionT = TypeVar("PositionT")
Content_co = TypeVar("Content_co", covariant=True)


@dataclasses.dataclass(frozen=True)
class Delivery(Generic[PositionT]):
    """What was handed out under an id: everything up to `end`."""

    batch_id: int
    end: PositionT


@dataclasses.dataclass(frozen=True)
class DeliveryQueue(Generic[PositionT]):
    """The deliveries that wait for an ack, in order. `acked`: the position up to which everything is acked. `taken`: the position up to
    which everything was handed out or contains nothing for this consumer.
    """

    acked: PositionT
    taken: PositionT
    waiting: tuple[Delivery[PositionT], ...] = ()
    next_id: int = 1

    def handed_out(self, end: PositionT) -> DeliveryQueue[PositionT]:
        delivery = Delivery(self.next_id, end)
        return dataclasses.replace(self, taken=end, waiting=(*self.waiting, delivery), next_id=self.next_id + 1)

    def passed(self, end: PositionT) -> DeliveryQueue[PositionT]:
        """Moves to `end`, up to which there is nothing for this consumer. If no delivery waits, everything up to it counts as acked."""
        return dataclasses.replace(self, taken=end, acked=self.acked if self.waiting else end)

    def acked_up_to(self, batch_id: int, who: str) -> DeliveryQueue[PositionT]:
        """Acks the first delivery. Raises BatchNotFoundError, or BatchNotFirstError if the id is a later one's."""
        first = self._first(batch_id, f"ack error , {who} batchId:{batch_id} is not exist , please check")
        rest = self.waiting[1:]
        return dataclasses.replace(self, acked=first.end if rest else self.taken, waiting=rest)

    def rolled_back(self, batch_id: int | None, who: str) -> DeliveryQueue[PositionT]:
        """Removes all waiting deliveries, which are then handed out again. With an id only if it is the first one's; raises as
        `acked_up_to` does.
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
    """The stream for one consumer: filtered, from any position."""

    @property
    def reads_alone(self) -> bool:
        """Whether the stream has its own connection to the source."""

    def take(
        self, position: PositionT, bytes_max: int, timeout_seconds: float, given_up: Callable[[], bool]
    ) -> tuple[Content_co | None, PositionT]:
        """Returns what follows `position`, and the position of its end. None: there is nothing for this consumer up to the returned
        position. Raises SluiceError.
        """

    def wake(self) -> None:
        """Wakes a waiting `take`, which then calls `given_up`."""

    def close(self) -> None:
        """Releases the stream; `take` is not called any more."""


class ConsumerService(Generic[PositionT, Content_co]):
    """Serves one consumer. All methods may be called from any thread; a rollback ends a waiting get."""

    def __init__(self, client_id: int, feed: ConsumerStream[PositionT, Content_co], begin: PositionT) -> None:
        self.client_id = client_id
        self._feed = feed
        self._line: DeliveryQueue[PositionT] = DeliveryQueue(begin, begin)
        self._taking, self._settling = threading.Lock(), threading.Lock()
        self._stops = 0  # A number that rises when waiting gets must return.
        self._closed = False
        self.trouble = ""  # Why the last get failed.
        self.undelivered = ""  # Why a broker could not be sent what its consumer got.
        self.waiting_since = 0.0  # When the oldest waiting delivery was handed out, in seconds since 1970.

    @property
    def line(self) -> DeliveryQueue[PositionT]:
        return self._line

    @property
    def reads_alone(self) -> bool:
        """Whether the consumer reads the source with its own connection."""
        return self._feed.reads_alone

    @property
    def acked(self) -> PositionT:
        """The position up to which everything is acked. A restart begins at the end of the last whole transaction before it."""
        return self._line.acked

    def get(self, bytes_max: int, timeout_seconds: float = 0.0) -> tuple[int, Content_co | None]:
        """Returns the next delivery and its id; (-1, None) if nothing arrived in time. Raises SluiceError."""
        deadline = time.monotonic() + timeout_seconds
        stops = self._stops  # It is read before the wait for another get: what ends that get ends this one too.
        with self._taking:
            while not self._closed:
                left = max(0.0, deadline - time.monotonic())
                content, end = self._taken(bytes_max, left, lambda: self._stops != stops)
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
        """Acks the first waiting delivery. Raises BatchNotFoundError, BatchNotFirstError."""
        with self._settling:
            self._line = self._line.acked_up_to(batch_id, self._who)
            self.waiting_since = time.time() if self._line.waiting else 0.0

    def rollback(self, batch_id: int | None = None) -> None:
        """Hands out all waiting deliveries again. With an id, raises as `ack` does."""
        self.stop_waiting()
        with self._taking, self._settling:
            self._line = self._line.rolled_back(batch_id, self._who)
            self.waiting_since = 0.0

    def stop_waiting(self) -> None:
        """Makes a waiting get return without a delivery."""
        self._stops += 1
        self._feed.wake()

    def close(self) -> None:
        """Ends a waiting get and closes the stream. Later gets return nothing."""
        self._closed = True
        self.stop_waiting()
        with self._taking:
            self._feed.close()

    @property
    def _who(self) -> str:
        return f"clientId:{self.client_id}"

    def _taken(
        self, bytes_max: int, timeout_seconds: float, given_up: Callable[[], bool]
    ) -> tuple[Content_co | None, PositionT]:
        try:
            taken = self._feed.take(self._line.taken, bytes_max, timeout_seconds, given_up)
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
