"""Finds the newest repair of a table in its Delta log. The equality check shows it."""

from __future__ import annotations

from collections.abc import Mapping

import deltalake
from deltalake.exceptions import DeltaError

from sluice.spark_jobs.staged_batch import REPAIR_KIND
from sluice.spark_jobs.tables.commit_record import CommittedInterval, read_commit

COMMITS_MAX = 200  # Only this many of the newest commits are searched, so an older repair is not found.


def last_repair(path: str, storage_options: Mapping[str, str] | None = None) -> CommittedInterval | None:
    """Returns the commit of the newest repair of the table at `path`. Returns None if the newest COMMITS_MAX commits contain no repair, or
    if the log cannot be read.
    """
    try:
        commits = deltalake.DeltaTable(path, storage_options=dict(storage_options or {}) or None).history(COMMITS_MAX)
    except (DeltaError, OSError):
        return None
    found = [each for each in map(read_commit, commits) if each.kind == REPAIR_KIND]
    return max(found, key=lambda each: each.version, default=None)
