"""Defines a mark: a point in a store, given by the numbers of transactions, events and bytes before this point."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, order=True)
class Mark:
    """A point in the store: how many complete transactions, row events, and bytes of row events were put before this point since the store
    was created.
    """

    transactions: int = 0
    events: int = 0
    bytes: int = 0

    def plus(self, transactions: int, events: int, size: int) -> Mark:
        return Mark(self.transactions + transactions, self.events + events, self.bytes + size)


NOTHING = Mark()
