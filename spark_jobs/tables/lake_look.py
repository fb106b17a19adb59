"""Checks between runs, without Spark, whether Delta tables are as the last run left them. For an unchanged table, the check takes two stat
calls. For a table that only runs have changed, it takes a few more calls and reads the files of the newest commits. In all other cases,
deltalake opens the table, which takes several milliseconds. `orchestration.sensor.lake_watch` calls this module.

Without this check, nobody would notice that a table without changes was restored, replaced or deleted, until its next change. The rules
are those of a merge (`table_owner`): a running merge, and OPTIMIZE or VACUUM by a user, are no reason for a warning.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError

from sluice.spark_jobs.durable_lake import LOG, local_table
from sluice.spark_jobs.errors import TableError, unreadable_log
from sluice.spark_jobs.table_owner import FoundTable, Owner, TableRecord, behind_our_back

# This many of the newest commits are searched for the id of a table. If none of them has the id, deltalake opens the table, which takes as
# long as reading many commits.
COMMITS_MAX = 10
Stamp = tuple[int, int, int]  # Inode, modification time in ns, and size in bytes of a commit's file.


@dataclasses.dataclass(frozen=True)
class _Seen:
    """The state of a table at its last check. `stamp` describes the file of the table's newest commit. `stamp` is None if this file is not
    local. `sentence` is the result of the check.
    """

    path: str
    record: TableRecord
    table_id: str
    version: int
    stamp: Stamp | None
    sentence: str


class LakeLook:
    """Checks whether other programs changed the Delta tables of one destination, and remembers each result. Not thread-safe.

    A caller sets `storage_options` again if their secrets may have changed.
    """

    def __init__(self, storage_options: Mapping[str, str]) -> None:
        self.storage_options = dict(storage_options)
        self._seen: dict[tuple[str, str], _Seen] = {}  # By path and source table, because shards share a path.

    def trouble(self, owner: Owner, path: str, record: TableRecord) -> str:
        """Returns what another program has done to the Delta table since the last run, and what an operator can do. `record` is the state
        in which the last run left the table. Returns "" if nothing relevant has changed. Raises TableError if the table's log cannot be
        read.
        """
        key = path, owner.table
        seen = self._seen.get(key)
        if seen is None or seen.record != record or not _unchanged(seen):
            seen = self._seen[key] = self._look(owner, path, record)
        return seen.sentence

    def _look(self, owner: Owner, path: str, record: TableRecord) -> _Seen:
        # The stamp is taken first. If the file is replaced meanwhile, the next check finds another stamp.
        stamp = _stamp(path, record.version)
        found = _left_by_the_run(path, record, self._seen.get((path, owner.table))) if stamp else None
        if found is None:
            found = self._opened(owner, path, record)
            stamp = _stamp(path, found.version) if found.exists else None
        return _Seen(path, record, found.table_id, found.version, stamp, behind_our_back(owner, record, found))

    def _opened(self, owner: Owner, path: str, record: TableRecord) -> FoundTable:
        """Returns the state of a table, read from its whole log. Raises TableError if the log cannot be read."""
        try:
            log = deltalake.DeltaTable(path, storage_options=self.storage_options or None)
            return _found(path, record, log)
        except TableNotFoundError:
            return FoundTable(exists=False, path=path)
        except (DeltaError, OSError) as error:
            raise TableError(owner.table, unreadable_log(path, error)) from error


def _found(path: str, record: TableRecord, log: Any) -> FoundTable:
    later = log.version() - record.version
    return FoundTable(
        exists=True,
        path=path,
        table_id=str(log.metadata().id),
        version=log.version(),
        commits=log.history(later) if later > 0 else (),
    )


def _left_by_the_run(path: str, record: TableRecord, seen: _Seen | None) -> FoundTable | None:
    """Returns the state of a local table whose newest commit is the one in the record. Returns None if there are later commits, or if
    `_table_id` does not find the table's id. The caller then opens the table with deltalake.
    """
    folder = local_table(path)
    if folder is None or _stamp(path, record.version + 1):
        return None
    try:
        table_id = _table_id(folder / LOG, record.version, seen)
    except (OSError, ValueError, KeyError, TypeError):  # deltalake reads the log too, and reports what is wrong.
        return None
    return FoundTable(exists=True, path=path, table_id=table_id, version=record.version) if table_id else None


def _table_id(log: Path, newest: int, seen: _Seen | None) -> str:
    """Returns the id of a table from the newest commit that has it. If the file of the commit that was newest at the last check is
    unchanged, stops at this commit and returns the id that the last check found. Returns "" if the newest COMMITS_MAX commits do not have
    the id.
    """
    for version in range(newest, max(newest - COMMITS_MAX, -1), -1):
        if seen is not None and seen.version == version and seen.stamp and seen.stamp == _stamp(seen.path, version):
            return seen.table_id
        # Parses all lines, even after the line with the id. A damaged line raises ValueError, and the caller then opens the table with
        # deltalake, which reports the damage.
        actions = [json.loads(line) for line in (log / f"{version:020d}.json").read_bytes().splitlines()]
        if not actions:
            return ""
        if metadata := next((each["metaData"] for each in actions if "metaData" in each), None):
            return str(metadata["id"])
    return ""


def _unchanged(seen: _Seen) -> bool:
    """Returns whether the file of the newest commit is unchanged and no later commit exists."""
    return (
        seen.stamp is not None
        and seen.stamp == _stamp(seen.path, seen.version)
        and not _stamp(seen.path, seen.version + 1)
    )


def _stamp(path: str, version: int) -> Stamp | None:
    folder = local_table(path)
    try:
        facts = (folder / LOG / f"{version:020d}.json").stat() if folder is not None else None
    except OSError:
        return None
    return None if facts is None else (facts.st_ino, facts.st_mtime_ns, facts.st_size)
