"""Counts, for each table of a batch, how often another writer of the Delta table committed first, or replaced a commit of the merge. Runs
report the counts.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter

logger = logging.getLogger(__name__)


class CommitConflicts:
    """The commit conflicts of one batch, by table. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: Counter[str] = Counter()

    def add(self, name: str, count: int = 1) -> None:
        """Adds `count` conflicts of the table `name` ("database.table"): of its current-state table, its change log or its history."""
        if count:
            logger.warning(
                "%s: another writer committed first, or replaced the commit of this run (%s times); Sluice merges the table again",
                name,
                count,
            )
        with self._lock:
            self._of[name] += count

    def of(self, name: str) -> int:
        with self._lock:
            return self._of[name]

    @property
    def total(self) -> int:
        with self._lock:
            return self._of.total()
