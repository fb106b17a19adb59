"""Recorded events of XA transactions in memory: for a stream that nothing outlives. `store.prepared` keeps them on disk."""

from __future__ import annotations

from cdc_engine.position import Position


class RecordedEvents:
    """`contracts.Content` of bytes in memory."""

    def __init__(self, content: bytes) -> None:
        self.size = len(content)
        self._left = memoryview(content)

    def read_into(self, space: memoryview) -> int:
        part, self._left = self._left[: len(space)], self._left[len(space) :]
        space[: len(part)] = part
        return len(part)


class MemoryPrepared:
    """`contracts.PreparedTransactions` that ends with the process."""

    def __init__(self) -> None:
        self._open = bytearray()
        self._prepared: dict[str, tuple[int, bytes]] = {}  # name → order key of the prepare, events

    def begin(self) -> None:
        self._open = bytearray()

    def record(self, event: bytes) -> None:
        self._open += event

    def recorded(self) -> RecordedEvents:
        return RecordedEvents(bytes(self._open))

    def prepare(self, name: str, order_key: int) -> None:
        self._prepared[name] = order_key, bytes(self._open)
        self._open = bytearray()

    def commit(self, name: str, order_key: int) -> RecordedEvents | None:  # noqa: ARG002  nothing is read again
        found = self._prepared.pop(name, None)
        return None if found is None else RecordedEvents(found[1])

    def roll_back(self, name: str) -> None:
        self._prepared.pop(name, None)

    def rewind(self, position: Position) -> None:
        self._prepared = {name: kept for name, kept in self._prepared.items() if kept[0] <= position.order_key}
