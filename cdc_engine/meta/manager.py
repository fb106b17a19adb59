"""Defines the interface that stores a ledger. `stored_ledger` stores it in a record store; `mirrored_meta` also copies its cursor to
ZooKeeper.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Protocol

from sluice.cdc_engine.contracts import StoppedTable
from sluice.cdc_engine.meta.ledger import Ledger

Transition = Callable[[Ledger], Ledger]


def stops(stopped: StoppedTable) -> Transition:
    """Returns the change of the ledger that stops the table, unless the table is stopped already."""
    return lambda ledger: ledger.stop_table(stopped)


def begins(epoch: int, stopped: Iterable[StoppedTable]) -> Transition:
    """Returns the change of the ledger that begins an epoch and stops tables in one write."""
    stops_now = tuple(stopped)
    return lambda ledger: functools.reduce(Ledger.stop_table, stops_now, ledger.begin_epoch(epoch))


class MetaManager(Protocol):
    """Stores and changes the ledger of one destination. Its methods may be called from any thread."""

    @property
    def ledger(self) -> Ledger:
        """The ledger as it was last written."""

    def update(self, transition: Transition) -> Ledger:
        """Applies one pure change to the ledger, stores the result, and then returns it. Changes are applied one at a time.

        Passes on what the transition raises. Raises MetaError when the result cannot be stored. After either error nothing has changed.
        """

    @property
    def is_new(self) -> bool:
        """Whether this ledger was never written."""

    def require_own(self) -> None:
        """Raises LeaseLostError once a write was refused: another process wrote or removed the stored ledger, so every later write is
        refused too.
        """

    def close(self) -> None:
        """Ends writes that are in progress. Call it last, when the engine stops."""
