"""Stores the events of prepared XA transactions in memory, for streams that end with the process. For a destination's stream,
`store.prepared` stores such events on disk.
"""

from __future__ import annotations

import dataclasses

from sluice.cdc_engine.binlog.events.undone_rows import UndoneRows
from sluice.cdc_engine.errors import BinlogFormatError
from sluice.cdc_engine.ports import Content
from sluice.cdc_engine.position import Position


class RecordedEvents:
    """A stream of binlog events that are in memory (`ports.Content`)."""

    def __init__(self, content: bytes) -> None:
        self.size = len(content)
        self._left = memoryview(content)

    def read_into(self, space: memoryview) -> int:
        part, self._left = self._left[: len(space)], self._left[len(space) :]
        space[: len(part)] = part
        return len(part)


@dataclasses.dataclass(frozen=True)
class _RecordedTransaction:
    """The events of an XA transaction. `prepared`: order key of the XA PREPARE. `committed`: order key of the XA COMMIT, or None if the
    transaction is not committed.
    """

    name: str
    events: bytes
    prepared: int
    committed: int | None = None


class MemoryPrepared:
    """Stores the events of XA transactions in memory (`ports.PreparedTransactions`). Committed transactions are kept too, because a rewound
    stream reads their commits again.
    """

    def __init__(self, undone: UndoneRows | None = None) -> None:
        self.undone = undone or UndoneRows()
        self._open: bytearray | None = None
        self._prepared: dict[str, _RecordedTransaction] = {}
        self._committed: list[_RecordedTransaction] = []

    def begin(self) -> None:
        self._open = bytearray()

    def record(self, event: bytes) -> None:
        self._writer().extend(event)

    def recorded(self) -> RecordedEvents:
        events, self._open = bytes(self._writer()), None
        return RecordedEvents(events)

    def prepare(self, name: str, order_key: int) -> None:
        self._prepared[name] = _RecordedTransaction(name, bytes(self._writer()), order_key)
        self._open = None

    def undecided(self) -> dict[str, bytes]:
        """Returns the XA transactions that are prepared, and neither committed nor rolled back: name of the transaction → its binlog
        events.
        """
        return {name: each.events for name, each in self._prepared.items()}

    def commit(self, name: str, order_key: int) -> Content | None:
        found = self._prepared.pop(name, None)
        if found is not None:
            self._committed.append(dataclasses.replace(found, committed=order_key))
        else:
            found = next((each for each in self._committed if (each.name, each.committed) == (name, order_key)), None)
        return None if found is None else RecordedEvents(found.events)

    def roll_back(self, name: str) -> None:
        self._prepared.pop(name, None)

    def rewind(self, position: Position) -> None:
        order_key = position.order_key
        kept = [each for each in (*self._prepared.values(), *self._committed) if each.prepared <= order_key]
        self._committed = [each for each in kept if each.committed is not None and each.committed <= order_key]
        undecided = [each for each in kept if each.committed is None or each.committed > order_key]
        self._prepared = {each.name: dataclasses.replace(each, committed=None) for each in undecided}

    def _writer(self) -> bytearray:
        if self._open is None:
            raise BinlogFormatError("the stream has events of an XA transaction without its XA START")
        return self._open
