"""Checks between runs, without Spark, whether Delta tables are as the last run left them. For an unchanged table this takes two stat
calls. `orchestration.sensor.lake_watch` calls this module.

Without this check, nobody would notice that a table without changes was restored, replaced or deleted, until its next change. The rules
are those of a merge (`table_owner`): a running merge, and OPTIMIZE or VACUUM by a user, are no reason for a warning.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError

from sluice.spark_jobs.durable_lake import LOG, local_table
from sluice.spark_jobs.errors import TableError, unreadable_log
from sluice.spark_jobs.table_owner import FoundTable, Owner, TableRecord, behind_our_back

Stamp = tuple[int, int, int]  # Inode, modification time in ns, and size in bytes of a commit's file.


@dataclasses.dataclass(frozen=True)
class _Seen:
    """The state of a table at its last check. `stamp` describes the file of the table's newest commit. It is None if this file is not
    local. `sentence` is the result of the check.
    """

    path: str
    record: TableRecord
    version: int
    stamp: Stamp | None
    sentence: str


class LakeLook:
    """Checks the tables of one destination, and remembers the result of each. Not thread-safe."""

    def __init__(self, storage_options: Mapping[str, str]) -> None:
        self._storage_options = dict(storage_options)
        self._seen: dict[str, _Seen] = {}

    def trouble(self, owner: Owner, path: str, record: TableRecord) -> str:
        """Returns what another program did to the table since `record`, and what to do. Returns "" if it did nothing relevant. Raises
        TableError if the table's log cannot be read.
        """
        seen = self._seen.get(path)
        if seen is None or seen.record != record or not _unchanged(seen):
            seen = self._seen[path] = self._look(owner, path, record)
        return seen.sentence

    def _look(self, owner: Owner, path: str, record: TableRecord) -> _Seen:
        try:
            log = deltalake.DeltaTable(path, storage_options=self._storage_options or None)
            found = _found(path, record, log)
        except TableNotFoundError:
            found = FoundTable(exists=False, path=path)
        except (DeltaError, OSError) as error:
            raise TableError(owner.table, unreadable_log(path, error)) from error
        stamp = _stamp(path, found.version) if found.exists else None
        return _Seen(path, record, found.version, stamp, behind_our_back(owner, record, found))


def _found(path: str, record: TableRecord, log: Any) -> FoundTable:
    later = log.version() - record.version
    return FoundTable(
        exists=True,
        path=path,
        table_id=str(log.metadata().id),
        version=log.version(),
        commits=log.history(later) if later > 0 else (),
    )


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
