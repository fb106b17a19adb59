"""XA transactions of a stream beside the destination's: those that it has read itself, and those that the destination recorded before.

For consumers that read alone (`instance.consumers.own_start`). Nothing is written: the records are the destination's, which keeps them
until no consumer is before their commit.
"""

from __future__ import annotations

from collections.abc import Callable

from cdc_engine.binlog.events.recorded import MemoryPrepared, RecordedEvents
from cdc_engine.ports import Content

NO_EVENTS = b""


class PreparedBeside(MemoryPrepared):
    """`contracts.PreparedTransactions`. `recorded_before`: what the destination has of a name, as `PreparedFiles.recorded_before`.

    The stretch before the stream begins is read with it too, until `begin`: rows of that are nobody's.
    """

    def __init__(self, recorded_before: Callable[[str], Content | None]) -> None:
        super().__init__()
        self._recorded_before = recorded_before
        self._before: dict[str, bytes] = {}
        self._begun = False

    def begin_stream(self) -> None:
        """What is prepared by now was so before the stream begins, and no rewind takes it back."""
        self._before, self._begun = self.undecided(), True

    def commit(self, name: str, order_key: int) -> Content | None:
        """Raises as `recorded_before`."""
        found = super().commit(name, order_key)
        if found is not None:
            return found
        if not self._begun:
            return RecordedEvents(NO_EVENTS)
        return RecordedEvents(self._before[name]) if name in self._before else self._recorded_before(name)
