"""Defines the interface through which a ledger is stored and changed. `stored_ledger` implements it with a record store. `cursor_copy`
implements it too, and also copies the cursor to ZooKeeper.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Protocol

from sluice.cdc_engine.contracts import StoppedTable
from sluice.cdc_engine.meta.ledger import Ledger

Transition = Callable[[Ledger], Ledger]


def stops(stopped: StoppedTable) -> Transition:
    """Returns a transition that stops a table, unless the table is already stopped."""
    return lambda ledger: ledger.stop_table(stopped)


def begins(epoch: int, stopped: Iterable[StoppedTable]) -> Transition:
    """Returns a transition that begins an epoch and stops tables, in one write."""
    stops_now = tuple(stopped)
    return lambda ledger: functools.reduce(Ledger.stop_table, stops_now, ledger.begin_epoch(epoch))


class MetaManager(Protocol):
    """Stores the ledger of one destination and changes it. Thread-safe."""

    @property
    def ledger(self) -> Ledger:
        """The ledger as it was last stored."""

    def update(self, transition: Transition) -> Ledger:
        """Applies a pure transition to the ledger, stores the result, and returns it. Only one transition is applied at a time.

        Raises the errors of the transition, and MetaError if the result cannot be stored. After an error the ledger is unchanged.
        """

    @property
    def is_new(self) -> bool:
        """Whether no ledger was stored when this object was created, and none was written since."""

    def require_own(self) -> None:
        """Raises LeaseLostError if the record store has refused a write, because another process wrote or removed the stored ledger. After
        such a refusal, the record store refuses all later writes of this process too.
        """

    def close(self) -> None:
        """Waits for writes that are in progress. The engine calls this method when it stops, directly before it releases the lease."""
