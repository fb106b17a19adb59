"""The newest repair of a table, by its own log. The equality check shows it."""

from __future__ import annotations

from collections.abc import Mapping

import deltalake
from deltalake.exceptions import DeltaError

from spark_jobs.staged_batch import REPAIR_KIND
from spark_jobs.tables.commit_record import Interval, read_commit

COMMITS_MAX = 200  # that are looked at; an older repair is no news


def last_repair(path: str, storage_options: Mapping[str, str] | None = None) -> Interval | None:
    """None where the newest commits have none, or the log cannot be read."""
    try:
        commits = deltalake.DeltaTable(path, storage_options=dict(storage_options or {}) or None).history(COMMITS_MAX)
    except (DeltaError, OSError):
        return None
    found = [each for each in map(read_commit, commits) if each.kind == REPAIR_KIND]
    return max(found, key=lambda each: each.version, default=None)
