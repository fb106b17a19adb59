"""Stores records only in the memory of the process: for tests, and for a destination that must leave nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from sluice.cdc_engine.errors import StaleWriteError
from sluice.cdc_engine.records.contract import NOT_THERE, NOTHING, RecordStore, StoredRecord, in_folder


class MemoryRecordStore(RecordStore):
    """A record store in the memory of the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: dict[str, StoredRecord] = {}
        self.also: dict[str, str] = {}  # Values for programs other than Sluice, which tests check.

    def read(self, name: str) -> StoredRecord | None:
        return self._records.get(name)

    def read_all(self, prefix: str) -> Mapping[str, StoredRecord]:
        with self._lock:
            return {name: each for name, each in self._records.items() if in_folder(name, prefix)}

    def write(self, name: str, text: str, *, version: int, token: int = 0, also: Mapping[str, str] = NOTHING) -> int:
        with self._lock:
            there = self._records.get(name, StoredRecord("", NOT_THERE))
            if there.version != version or there.token > token:
                raise StaleWriteError(f"{name} in memory has changed: version {there.version}, token {there.token}")
            self._records[name] = StoredRecord(text, version + 1, token)
            self.also.update(also)
            return version + 1

    def remove(self, name: str, version: int | None = None) -> bool:
        with self._lock:
            there = self._records.get(name)
            if there is None or version not in {None, there.version}:
                return False
            del self._records[name]
            return True

    def __str__(self) -> str:
        return "memory"
