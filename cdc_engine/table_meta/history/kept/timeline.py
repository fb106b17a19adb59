"""Values by position: what held at a place in the stream. The history keeps one for each table, each database and the server."""

from __future__ import annotations

import bisect
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Timeline(Generic[Value]):
    """Entries of (order key, value), ascending; a value holds from its key on."""

    def __init__(self) -> None:
        self._keys: list[int] = []
        self._values: list[Value] = []

    def put(self, key: int, value: Value) -> None:
        """Appends; an entry of the same key is replaced. Later entries must have been dropped before."""
        if self._keys and self._keys[-1] > key:
            raise ValueError(f"entry {key} comes after {self._keys[-1]}")
        if self._keys and self._keys[-1] == key:
            self._values[-1] = value
            return
        self._keys.append(key)
        self._values.append(value)

    def at(self, key: int) -> Value | None:
        """The value of the last entry whose key is not above `key`."""
        index = bisect.bisect_right(self._keys, key)
        return self._values[index - 1] if index else None

    def drop_after(self, key: int) -> bool:
        """Forgets all entries above `key`; whether there were any."""
        index = bisect.bisect_right(self._keys, key)
        dropped = index < len(self._keys)
        del self._keys[index:], self._values[index:]
        return dropped
