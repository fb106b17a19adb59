"""A position in a store, counted in transactions, events and bytes since its begin."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, order=True)
class Mark:
    """A point in the store, as counts since the store was made: whole transactions, row events and bytes of row events before it."""

    transactions: int = 0
    events: int = 0
    bytes: int = 0

    def plus(self, transactions: int, events: int, size: int) -> Mark:
        return Mark(self.transactions + transactions, self.events + events, self.bytes + size)


NOTHING = Mark()
