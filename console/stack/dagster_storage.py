"""Checks whether Dagster's storage still exists, how large it is, and when the daemon wrote its last heartbeat.

If somebody removes the SQLite files of a running daemon, the daemon makes no ticks and no runs. The daemon reports the removal only in its
log, and never creates the files again.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import yaml

# The SQLite files in which Dagster stores runs and ticks if dagster.yaml names no storage. The paths are relative to Dagster's home.
FILES = (
    "history/runs.db",
    "schedules/schedules.db",
)
STORAGES = ("storage", "run_storage", "event_log_storage", "schedule_storage")
OURS = {"module": "sluice.orchestration.storage", "class": "KeptSqlite"}
# The daemon writes a heartbeat every 30 s. If the last one is older than this, the daemon is reported as not running.
HEARTBEAT_SECONDS_MAX = 120.0
# Missing files are reported only if Dagster's processes have run for this long, because a process that has just started may not have
# created the files yet.
MAKING_SECONDS_MAX = 60.0


def with_storage(settings: str, home: Path) -> str:
    """Returns the text of a dagster.yaml. If the given text names no storage, adds Sluice's SQLite storage in `home`."""
    configured = yaml.safe_load(settings) or {}
    if any(name in configured for name in STORAGES):
        return settings
    storage = {"storage": {"custom": {**OURS, "config": {"base_dir": str(home)}}}}
    return f"{settings.rstrip()}\n\n{yaml.safe_dump(storage, sort_keys=False)}"


def lost_storage(home: Path, running_seconds: float) -> str:
    """Returns a sentence if files of Dagster's storage are missing although Dagster's processes run. `running_seconds` is the time since
    the start of these processes. Returns "" in all other cases, and while the processes have run for less than MAKING_SECONDS_MAX.
    """
    if running_seconds < MAKING_SECONDS_MAX or _elsewhere(home):
        return ""
    missing = [name for name in FILES if not _has_tables(home / name)]
    if not missing:
        return ""
    return (
        f"Dagster's storage was removed while Dagster runs ({', '.join(missing)} in {home}): Dagster starts "
        "no ticks and no runs; `sluice up` restarts Dagster with an empty history, and no change is lost"
    )


def storage_bytes(home: Path) -> int | None:
    """Returns the size of Dagster's storage on this host in bytes, or None if the storage is not in files."""
    if _elsewhere(home):
        return None
    return sum(_sizes(home / "history")) + sum(_sizes(home / "schedules"))


def _sizes(folder: Path) -> Iterator[int]:
    """Yields the sizes of all files in a folder and its subfolders. A file that another process removes meanwhile is skipped."""
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _sizes(Path(entry.path))
            else:
                with contextlib.suppress(FileNotFoundError):
                    yield entry.stat().st_size


def daemon_sentence(home: Path, now: float) -> str:
    """Returns a sentence that says whether Dagster's daemon runs, judged by the last heartbeat of its sensors. `sluice status` shows the
    sentence if an engine gets no ticks. `now` is in seconds since 1970.

    Call this function only if `lost_storage` returns "", because this function creates a missing storage.
    """
    from dagster import DagsterInstance  # noqa: PLC0415  dagster takes seconds to import

    try:
        with DagsterInstance.from_config(str(home)) as instance:
            beat = instance.get_daemon_heartbeats().get("SENSOR")
    except Exception as error:  # Each kind of storage raises its own kinds of errors.
        return (
            f"Dagster's storage in {home} cannot be read ({type(error).__name__}), so Sluice does not know whether Dagster's daemon "
            "runs: repair the storage, or correct `storage` in dagster.yaml"
        )
    if beat is None:
        return f"Dagster's daemon has written no heartbeat to the storage in {home}: start the daemon with `sluice up`"
    age = now - beat.timestamp
    if abs(age) > HEARTBEAT_SECONDS_MAX:
        return (
            f"Dagster's daemon does not run or hangs (its last heartbeat was {age:.0f} s ago): run `sluice down`, "
            "then `sluice up`"
        )
    return (
        f"Dagster's daemon runs (its last heartbeat was {age:.0f} s ago). The daemon's log in <data_dir>/logs "
        "shows whether the daemon reaches the code server, and Dagster's UI (Automation) shows whether the "
        "sensor is on"
    )


def _elsewhere(home: Path) -> bool:
    """Returns whether dagster.yaml names another storage than Sluice's SQLite files, such as Postgres. Returns False if dagster.yaml cannot
    be read.
    """
    try:
        configured = yaml.safe_load((home / "dagster.yaml").read_text())
    except (OSError, yaml.YAMLError):
        return False
    if not isinstance(configured, dict):
        return False
    custom = (configured.get("storage") or {}).get("custom") or {}
    return any(name in configured for name in STORAGES) and {key: custom.get(key) for key in OURS} != OURS


def _has_tables(file: Path) -> bool:
    """Returns whether a file is a SQLite database with tables. Also returns True if the file is not empty but cannot be read, for example
    because it is locked.
    """
    if not file.is_file():
        return False
    try:
        with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=1.0)) as database:
            return database.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' LIMIT 1").fetchone() is not None
    except sqlite3.Error:
        return file.stat().st_size > 0
