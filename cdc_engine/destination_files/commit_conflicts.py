"""Counts in `commit-conflicts.json` how often merges of a destination conflicted with commits of other writers. Runs update the count, and
the engine's status shows it.
"""

from __future__ import annotations

import contextlib
import json

from sluice.cdc_engine.errors import MetaError
from sluice.cdc_engine.records.location import Location, record_store

RECORD = "commit-conflicts.json"


def read_commit_conflicts(directory: Location) -> int:
    """Returns the number of commit conflicts since the destination was created, or 0 if there is no record. Raises MetaError if the record
    cannot be read.
    """
    text = record_store(directory).get(RECORD)
    try:
        return int(json.loads(text)["count"]) if text else 0
    except (ValueError, KeyError, TypeError) as error:
        where = record_store(directory).where(RECORD)
        raise MetaError(
            f"{where} cannot be read ({error}): remove it, and the number of conflicts is counted from 0 again"
        ) from error


def add_commit_conflicts(directory: Location, count: int) -> None:
    """Adds the conflicts of a run to the record. The caller must hold the run lock, so that no other run changes the record. Raises
    MetaError if the record cannot be read or written.
    """
    record_store(directory).put(RECORD, json.dumps({"count": read_commit_conflicts(directory) + count}) + "\n")


class ConflictCount:
    """The number of commit conflicts that an engine's status shows. The engine reads the record when it starts and after each settled
    batch, because only runs change the record.
    """

    def __init__(self, directory: Location) -> None:
        self._directory, self.count = directory, 0

    def look(self) -> None:
        """Reads the record. If the record cannot be read, keeps the number that was read last, because this error must not delay a
        batch.
        """
        with contextlib.suppress(MetaError):
            self.count = read_commit_conflicts(self._directory)
