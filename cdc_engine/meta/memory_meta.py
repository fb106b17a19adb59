"""Keeps a ledger in memory: for tests, and to look at a stream without leaving a trace. It is lost with the process."""

from __future__ import annotations

import threading

from cdc_engine.meta.ledger import Ledger, born_id
from cdc_engine.meta.manager import Transition


class MemoryMeta:
    """The ledger in memory. Implements `MetaManager`."""

    def __init__(self, ledger: Ledger | None = None) -> None:
        self._ledger = ledger or Ledger(ledger_id=born_id())
        self._lock = threading.Lock()

    @property
    def ledger(self) -> Ledger:
        return self._ledger

    def update(self, transition: Transition) -> Ledger:
        with self._lock:
            self._ledger = transition(self._ledger)
            return self._ledger

    @property
    def is_new(self) -> bool:
        return self._ledger.cursor is None

    def close(self) -> None:
        """Does nothing."""
