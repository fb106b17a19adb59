"""Counts how often merges of a destination met commits of other writers, in `commit-conflicts.json`. Runs write it, the engine shows it."""

from __future__ import annotations

import contextlib
import json

from sluice.cdc_engine.errors import MetaError
from sluice.cdc_engine.records.location import Location, record_store

RECORD = "commit-conflicts.json"


def read_commit_conflicts(directory: Location) -> int:
    """Returns the number since the destination was created; 0 if there is no record. Raises MetaError."""
    text = record_store(directory).get(RECORD)
    try:
        return int(json.loads(text)["count"]) if text else 0
    except (ValueError, KeyError, TypeError) as error:
        where = record_store(directory).where(RECORD)
        raise MetaError(f"{where} cannot be read ({error}): remove it, and the count starts at 0 again") from error


def add_commit_conflicts(directory: Location, count: int) -> None:
    """Adds conflicts of a run, which holds the run lock. Raises MetaError."""
    record_store(directory).put(RECORD, json.dumps({"count": read_commit_conflicts(directory) + count}) + "\n")


class ConflictCount:
    """The count as an engine shows it. It is read at the start and after each settled batch, because only runs change it."""

    def __init__(self, directory: Location) -> None:
        self._directory, self.count = directory, 0

    def look(self) -> None:
        """Reads the record. If it cannot be read, the previous count remains, because a count must not delay a batch."""
        with contextlib.suppress(MetaError):
            self.count = read_commit_conflicts(self._directory)
