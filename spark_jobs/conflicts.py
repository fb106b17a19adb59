"""Defines how often a commit is attempted if another writer of the Delta table commits first, and counts these conflicts for each table of
a batch. Runs report the counts.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter

logger = logging.getLogger(__name__)

# A commit that conflicts with another one is attempted at most this many times. After that, Spark merges the table instead of deltalake, or
# the merge of the table fails. A person's OPTIMIZE can cause a conflict, because it rewrites files that the merge has read.
COMMIT_TRIES_MAX = 5


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
