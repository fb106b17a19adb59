"""Holds the prepared XA transactions of a second stream of a destination: those that this stream reads, and those that the destination
recorded.

For consumers with their own stream (`instance.consumers.own_start`). Nothing is written: the records belong to the destination, which
removes a record only when all consumers have passed the transaction's commit.
"""

from __future__ import annotations

from collections.abc import Callable

from sluice.cdc_engine.binlog.events.recorded import MemoryPrepared, RecordedEvents
from sluice.cdc_engine.ports import Content

NO_EVENTS = b""


class OwnPrepared(MemoryPrepared):
    """Implements `contracts.PreparedTransactions`. `recorded_before`: returns the destination's record of a name, like
    `PreparedFiles.recorded_before`.

    Before `begin_stream`, the interval before the stream's start is read; its rows are not used.
    """

    def __init__(self, recorded_before: Callable[[str], Content | None]) -> None:
        super().__init__()
        self._recorded_before = recorded_before
        self._before: dict[str, bytes] = {}
        self._begun = False

    def begin_stream(self) -> None:
        """Marks the start of the stream. A later rewind does not remove the transactions that are prepared at the start."""
        self._before, self._begun = self.undecided(), True

    def commit(self, name: str, order_key: int) -> Content | None:
        """Returns the events of a transaction, or None. Raises the errors of `recorded_before`."""
        found = super().commit(name, order_key)
        if found is not None:
            return found
        if not self._begun:
            return RecordedEvents(NO_EVENTS)
        return RecordedEvents(self._before[name]) if name in self._before else self._recorded_before(name)
