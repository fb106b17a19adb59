"""Whether Dagster's storage is still there under the processes that use it. Asked by `stack` (before `up`) and by `status`.

A daemon whose SQLite files were removed while it runs makes no tick and no run, says so in its log alone, and never makes them anew.
"""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import yaml

# Where Dagster keeps runs and ticks, unless dagster.yaml names another storage.
FILES = (
    "history/runs.db",
    "schedules/schedules.db",
)
STORAGES = ("storage", "run_storage", "schedule_storage")
MAKING_SECONDS_MAX = 60.0  # a process that has just begun makes them first


def lost_storage(home: Path, running_seconds: float) -> str:
    """What is missing of the storage that processes have used for so long, a sentence; empty when nothing is, or none of it is in files."""
    if running_seconds < MAKING_SECONDS_MAX or _elsewhere(home):
        return ""
    missing = [name for name in FILES if not _has_tables(home / name)]
    if not missing:
        return ""
    return (
        f"Dagster's storage was removed while it runs ({', '.join(missing)} in {home}): no tick and no run comes of it; "
        "`sluice up` starts Dagster anew, with an empty history and no change lost"
    )


def _elsewhere(home: Path) -> bool:
    """Whether dagster.yaml names a storage, such as Postgres."""
    try:
        configured = yaml.safe_load((home / "dagster.yaml").read_text())
    except (OSError, yaml.YAMLError):
        return False
    return isinstance(configured, dict) and any(name in configured for name in STORAGES)


def _has_tables(file: Path) -> bool:
    """A file that cannot be asked, being locked, counts as well."""
    if not file.is_file():
        return False
    try:
        with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=1.0)) as database:
            return database.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' LIMIT 1").fetchone() is not None
    except sqlite3.Error:
        return file.stat().st_size > 0
