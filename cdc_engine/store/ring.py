"""Computes the counts of the ring: how many transactions, events and bytes were put, are in complete transactions, were handed out, and
were acked. Pure functions. `memory_store` calls this module under its lock.

    ack ≤ get ≤ complete ≤ put

`put` is the end of all appended events. `complete` is the end of the last complete transaction; no event after `complete` may be handed
out. `get` is the end of the events that were handed out, and `ack` the end of the acked events. Each transition returns a new `Ring`. A
transition that would break this order raises ValueError, because its caller has a defect.
"""

from __future__ import annotations

import dataclasses

from sluice.cdc_engine.store.files.mark import NOTHING, Mark


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ring:
    """The counts of the ring, and the ring's limits. A `Mark` is a point in the store: the transactions, row events and bytes before this
    point. `spilled_events` and `spilled_bytes` count the events between `ack` and `put` that are on disk and not in memory.
    `forgotten_events` counts the row events that were put and then dropped without an ack.
    """

    bytes_max: int
    events_max: int
    put: Mark = NOTHING
    complete: Mark = NOTHING
    get: Mark = NOTHING
    ack: Mark = NOTHING
    spilled_events: int = 0
    spilled_bytes: int = 0
    forgotten_events: int = 0

    def __post_init__(self) -> None:
        marks = (self.ack, self.get, self.complete, self.put)
        for name in ("transactions", "events", "bytes"):
            values = [getattr(mark, name) for mark in marks]
            if values != sorted(values):
                raise ValueError(f"ack, get, complete, put are out of order in {name}: {values}")
        if not (0 <= self.spilled_bytes <= self.put.bytes - self.ack.bytes):
            raise ValueError(f"{self.spilled_bytes} bytes on disk are more than the bytes that wait in the store")

    @property
    def fill_bytes(self) -> int:
        """How many bytes of row events are in memory and not acked yet."""
        return self.put.bytes - self.ack.bytes - self.spilled_bytes

    @property
    def fill_events(self) -> int:
        """How many row events are in memory and not acked yet."""
        return self.put.events - self.ack.events - self.spilled_events

    @property
    def full(self) -> bool:
        """Whether the ring is full. The check is made before a block is added, so that a block of any size fits into an empty ring."""
        return self.fill_bytes >= self.bytes_max or self.fill_events >= self.events_max

    @property
    def only_open_transaction(self) -> bool:
        """Whether all complete transactions are acked. If so, a put must not wait for space, because no ack would free space."""
        return self.complete.transactions == self.ack.transactions

    @property
    def waiting_transactions(self) -> int:
        """How many complete transactions were not handed out yet."""
        return self.complete.transactions - self.get.transactions

    def added(self, put: Mark, complete: Mark) -> Ring:
        return dataclasses.replace(self, put=put, complete=complete)

    def spilled(self, put: Mark) -> Ring:
        """Returns the ring after a block was appended on disk. The block ends no transaction."""
        events, size = put.events - self.put.events, put.bytes - self.put.bytes
        return dataclasses.replace(
            self, put=put, spilled_events=self.spilled_events + events, spilled_bytes=self.spilled_bytes + size
        )

    def get_at(self, get: Mark) -> Ring:
        """Returns the ring after a batch that ends at `get` was handed out, or after the hand-out of a batch that begins at `get` was
        undone.
        """
        return dataclasses.replace(self, get=get)

    def acked(self, ack: Mark, spilled_events: int, spilled_bytes: int) -> Ring:
        """Returns the ring after an ack. `spilled_events` and `spilled_bytes` are the part of the acked events that was on disk."""
        return dataclasses.replace(
            self,
            ack=ack,
            spilled_events=self.spilled_events - spilled_events,
            spilled_bytes=self.spilled_bytes - spilled_bytes,
        )

    def rolled_back(self) -> Ring:
        return dataclasses.replace(self, get=self.ack)

    def open_dropped(self, spilled_events: int, spilled_bytes: int) -> Ring:
        """Returns the ring without the open transaction, which is all events after the last complete transaction. `spilled_events` and
        `spilled_bytes` are the part of these events that was on disk.
        """
        return dataclasses.replace(
            self,
            put=self.complete,
            forgotten_events=self.forgotten_events + self.put.events - self.complete.events,
            spilled_events=self.spilled_events - spilled_events,
            spilled_bytes=self.spilled_bytes - spilled_bytes,
        )

    def cleared(self) -> Ring:
        """Returns the ring without the events that are not acked. The parser will put these events again."""
        return dataclasses.replace(
            self,
            put=self.ack,
            complete=self.ack,
            get=self.ack,
            forgotten_events=self.forgotten_events + self.put.events - self.ack.events,
            spilled_events=0,
            spilled_bytes=0,
        )
