"""Counts the transactions, events and bytes of a store before a point."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, order=True)
class Mark:
    """A point in the store, as counts since the store was created: how many complete transactions, row events, and bytes of row events
    precede it.
    """

    transactions: int = 0
    events: int = 0
    bytes: int = 0

    def plus(self, transactions: int, events: int, size: int) -> Mark:
        return Mark(self.transactions + transactions, self.events + events, self.bytes + size)


NOTHING = Mark()
