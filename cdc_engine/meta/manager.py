"""The contract of a ledger's keeper. `file_meta` keeps it in a file, `kept_meta` among shared texts, `memory_meta` as long as it lives."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Protocol

from cdc_engine.contracts import StoppedTable
from cdc_engine.meta.ledger import Ledger

Transition = Callable[[Ledger], Ledger]


def stops(stopped: StoppedTable) -> Transition:
    """The table stops, unless it has before."""
    return lambda ledger: ledger.stop_table(stopped)


def begins(epoch: int, stopped: Iterable[StoppedTable]) -> Transition:
    """A new epoch, in which tables stop, in one write."""
    stops_now = tuple(stopped)
    return lambda ledger: functools.reduce(Ledger.stop_table, stops_now, ledger.begin_epoch(epoch))


class MetaManager(Protocol):
    """Keeps one destination's ledger. Its methods may be called from any thread."""

    @property
    def ledger(self) -> Ledger:
        """The ledger as it was last kept."""

    def update(self, transition: Transition) -> Ledger:
        """Applies one pure transition and keeps the outcome before it returns it; one at a time.

        What the transition raises is passed on. Raises MetaError when the outcome cannot be kept. After either nothing has changed.
        """

    @property
    def is_new(self) -> bool:
        """Whether this ledger was never kept."""

    def close(self) -> None:
        """Ends what is under way. The engine stops; nothing is called after it."""
