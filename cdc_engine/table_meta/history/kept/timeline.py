"""Keeps a value for each position of the stream. The history has one timeline per table, per database, and for the server."""

from __future__ import annotations

import bisect
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Timeline(Generic[Value]):
    """Entries of (order key, value) in ascending order. A value is valid from its key on."""

    def __init__(self) -> None:
        self._keys: list[int] = []
        self._values: list[Value] = []

    def put(self, key: int, value: Value) -> None:
        """Appends an entry, and replaces one with the same key. Later entries must have been dropped before."""
        if self._keys and self._keys[-1] > key:
            raise ValueError(f"entry {key} comes after {self._keys[-1]}")
        if self._keys and self._keys[-1] == key:
            self._values[-1] = value
            return
        self._keys.append(key)
        self._values.append(value)

    def at(self, key: int) -> Value | None:
        """Returns the value of the last entry whose key is not above `key`, or None."""
        index = bisect.bisect_right(self._keys, key)
        return self._values[index - 1] if index else None

    def begins_by(self, key: int) -> bool:
        """Returns whether there is an entry whose key is not above `key`."""
        return bool(self._keys) and self._keys[0] <= key

    def drop_after(self, key: int) -> bool:
        """Removes all entries above `key`. Returns whether there were any."""
        index = bisect.bisect_right(self._keys, key)
        dropped = index < len(self._keys)
        del self._keys[index:], self._values[index:]
        return dropped
