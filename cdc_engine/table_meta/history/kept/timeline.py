"""Stores a value that changes at certain positions of the stream. The schema history has such a timeline for each table, database,
trigger and view, and for the server.
"""

from __future__ import annotations

import bisect
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Timeline(Generic[Value]):
    """Entries (order key, value) with ascending keys. A value applies from its key up to the next entry's key."""

    def __init__(self) -> None:
        self._keys: list[int] = []
        self._values: list[Value] = []

    def put(self, key: int, value: Value) -> None:
        """Appends an entry, or replaces the last entry if it has the same key. Raises ValueError if `key` is below the key of the last
        entry.
        """
        if self._keys and self._keys[-1] > key:
            raise ValueError(f"the key {key} is below the key of the last entry, {self._keys[-1]}")
        if self._keys and self._keys[-1] == key:
            self._values[-1] = value
            return
        self._keys.append(key)
        self._values.append(value)

    def at(self, key: int) -> Value | None:
        """Returns the value of the entry that applies at `key`, or None if no entry applies."""
        index = bisect.bisect_right(self._keys, key)
        return self._values[index - 1] if index else None

    def begins_by(self, key: int) -> bool:
        """Returns whether an entry applies at `key`, even an entry whose value is None."""
        return bool(self._keys) and self._keys[0] <= key

    def drop_after(self, key: int) -> bool:
        """Removes all entries whose keys are above `key`. Returns whether an entry was removed."""
        index = bisect.bisect_right(self._keys, key)
        dropped = index < len(self._keys)
        del self._keys[index:], self._values[index:]
        return dropped
