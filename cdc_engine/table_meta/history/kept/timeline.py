"""Stores a value for each position of the stream. The history has one timeline per table and per database, and one for the server."""

from __future__ import annotations

import bisect
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Timeline(Generic[Value]):
    """Entries of (order key, value) in ascending order. A value is valid from its key to the next entry's key."""

    def __init__(self) -> None:
        self._keys: list[int] = []
        self._values: list[Value] = []

    def put(self, key: int, value: Value) -> None:
        """Appends an entry, or replaces the entry with the same key. The key must not be below the last one: call `drop_after` first."""
        if self._keys and self._keys[-1] > key:
            raise ValueError(f"entry {key} comes after {self._keys[-1]}")
        if self._keys and self._keys[-1] == key:
            self._values[-1] = value
            return
        self._keys.append(key)
        self._values.append(value)

    def at(self, key: int) -> Value | None:
        """Returns the value of the last entry whose key is at most `key`, or None."""
        index = bisect.bisect_right(self._keys, key)
        return self._values[index - 1] if index else None

    def begins_by(self, key: int) -> bool:
        """Returns whether an entry has a key of at most `key`."""
        return bool(self._keys) and self._keys[0] <= key

    def drop_after(self, key: int) -> bool:
        """Removes all entries above `key`. Returns whether it removed any."""
        index = bisect.bisect_right(self._keys, key)
        dropped = index < len(self._keys)
        del self._keys[index:], self._values[index:]
        return dropped
