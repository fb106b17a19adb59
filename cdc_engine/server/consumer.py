"""One consumer of a destination beside the lake: what it was given, what it has acked, and what it gets next. Pure but for its locks.

    get ─▶ Delivery waits ─▶ ack       the cursor moves to the end of the last whole transaction in it
                    └──────▶ rollback  all that waits comes again, under new ids

A delivery may end amid a transaction: then an ack is remembered by row events (`Place`), so that a rollback goes back no further than it
must, while the cursor, which is what a restart begins with, stays at the last transaction's end (canal.md §4). Nothing here knows what the
consumer makes of a delivery. `cdc_engine.instance.consumers` keeps the cursor in the ledger.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from cdc_engine.errors import BatchNotFirstError, BatchNotFoundError, CanalServiceError, ConsumerStoppedError

PlaceT = TypeVar("PlaceT")
Content_co = TypeVar("Content_co", covariant=True)


@dataclasses.dataclass(frozen=True)
class Delivery(Generic[PlaceT]):
    """What was handed out under an id: everything up to `end`."""

    batch_id: int
    end: PlaceT


@dataclasses.dataclass(frozen=True)
class Line(Generic[PlaceT]):
    """The deliveries that wait, in order. `acked`: up to where all is acked; `taken`: up to where all was handed out, or held nothing."""

    acked: PlaceT
    taken: PlaceT
    waiting: tuple[Delivery[PlaceT], ...] = ()
    next_id: int = 1

    def handed_out(self, end: PlaceT) -> Line[PlaceT]:
        delivery = Delivery(self.next_id, end)
        return dataclasses.replace(self, taken=end, waiting=(*self.waiting, delivery), next_id=self.next_id + 1)

    def passed(self, end: PlaceT) -> Line[PlaceT]:
        """Nothing up to `end` is for this consumer: where nothing waits, that is as good as acked."""
        return dataclasses.replace(self, taken=end, acked=self.acked if self.waiting else end)

    def acked_up_to(self, batch_id: int, who: str) -> Line[PlaceT]:
        """Raises BatchNotFoundError, or BatchNotFirstError for a later one."""
        first = self._first(batch_id, f"ack error , {who} batchId:{batch_id} is not exist , please check")
        rest = self.waiting[1:]
        return dataclasses.replace(self, acked=first.end if rest else self.taken, waiting=rest)

    def rolled_back(self, batch_id: int | None, who: str) -> Line[PlaceT]:
        """All that waits comes again. With an id only if that is the first; raises as `acked_up_to`."""
        if batch_id is not None:
            self._first(batch_id, f"rollback error, {who} batchId:{batch_id} is not exist , please check")
        return dataclasses.replace(self, taken=self.acked, waiting=())

    def _first(self, batch_id: int, unknown: str) -> Delivery[PlaceT]:
        if batch_id not in [each.batch_id for each in self.waiting]:
            raise BatchNotFoundError(unknown)
        if batch_id != self.waiting[0].batch_id:
            raise BatchNotFirstError(f"batchId:{batch_id} is not the firstly:{self.waiting[0].batch_id}")
        return self.waiting[0]


class Feed(Protocol[PlaceT, Content_co]):
    """The stream as one consumer sees it: filtered for it, from any place."""

    @property
    def reads_alone(self) -> bool:
        """Whether it has a connection of its own to the source."""

    def take(
        self, place: PlaceT, bytes_max: int, timeout_seconds: float, given_up: Callable[[], bool]
    ) -> tuple[Content_co | None, PlaceT]:
        """What follows `place` and where it ends; None: nothing for this consumer, up to where it looked. Raises SluiceError."""

    def wake(self) -> None:
        """A `take` that waits asks whether it is given up."""

    def close(self) -> None:
        """Nobody takes any more."""


class ConsumerService(Generic[PlaceT, Content_co]):
    """One consumer. All methods may be called from any thread; a rollback ends a get that waits."""

    def __init__(self, client_id: int, feed: Feed[PlaceT, Content_co], begin: PlaceT) -> None:
        self.client_id = client_id
        self._feed = feed
        self._line: Line[PlaceT] = Line(begin, begin)
        self._taking, self._settling = threading.Lock(), threading.Lock()
        self._stops = 0  # gets that wait are given up
        self._closed = False
        self.trouble = ""  # why the last get failed
        self.undelivered = ""  # why what it got cannot be sent on, where it is a broker's
        self.waiting_since = 0.0  # when the oldest delivery that waits was handed out, seconds since 1970

    @property
    def line(self) -> Line[PlaceT]:
        return self._line

    @property
    def reads_alone(self) -> bool:
        """Whether it reads the source with a connection of its own."""
        return self._feed.reads_alone

    @property
    def acked(self) -> PlaceT:
        """Up to where all is acked: a restart begins with the end of the last whole transaction before it."""
        return self._line.acked

    def get(self, bytes_max: int, timeout_seconds: float = 0.0) -> tuple[int, Content_co | None]:
        """The next delivery and its id; (-1, None) where nothing came in time. Raises SluiceError."""
        deadline = time.monotonic() + timeout_seconds
        stops = self._stops  # also while another get is waited for: what gives that one up gives this one up too
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
        """Raises BatchNotFoundError, BatchNotFirstError."""
        with self._settling:
            self._line = self._line.acked_up_to(batch_id, self._who)
            self.waiting_since = time.time() if self._line.waiting else 0.0

    def rollback(self, batch_id: int | None = None) -> None:
        """All that waits for an ack comes again. Raises as `ack` does where an id is given."""
        self.stop_waiting()
        with self._taking, self._settling:
            self._line = self._line.rolled_back(batch_id, self._who)
            self.waiting_since = 0.0

    def stop_waiting(self) -> None:
        """A get that waits returns with nothing."""
        self._stops += 1
        self._feed.wake()

    def close(self) -> None:
        """Nobody gets anything any more."""
        self._closed = True
        self.stop_waiting()
        with self._taking:
            self._feed.close()

    @property
    def _who(self) -> str:
        return f"clientId:{self.client_id}"

    def _taken(
        self, bytes_max: int, timeout_seconds: float, given_up: Callable[[], bool]
    ) -> tuple[Content_co | None, PlaceT]:
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
