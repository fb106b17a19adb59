"""Finds the commits of runs that a Delta table no longer has, because another program restored or overwrote the table. Pure functions.

`sluice lake accept` shows these commits. This module finds lost commits in Delta's log: a RESTORE names the version that it restored, and
each commit of a run has metadata about its part of the stream (`commit_record`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from sluice.spark_jobs.table_owner import (
    Owner,
    TableRecord,
    is_by,
    of_a_shard,
    restored_version,
    rewrites,
    rewritten_by,
)
from sluice.spark_jobs.tables.commit_record import MAINTENANCE_KIND, CommittedInterval, read_commit


@dataclasses.dataclass(frozen=True, kw_only=True)
class LostCommits:
    """The commits of runs that were lost, oldest first.

    `by` is the commit of another program that removed their rows from the table (`rewritten_by`). `by` is None if nothing was lost. If
    `all_doubtful`, the log does not tell which rows the table still has, so any row that runs have merged may be missing.
    """

    commits: tuple[CommittedInterval, ...] = ()
    by: CommittedInterval | None = None
    all_doubtful: bool = False


def lost_commits(owner: Owner, record: TableRecord, version: int, history: Iterable[Mapping[str, Any]]) -> LostCommits:
    """Returns the commits of runs that the table's current version no longer has.

    The version in `record` is the one that the last run left, so it has all commits of runs. `version` is the current version. `history` is
    Delta's history in any order. The search goes backwards from the current version to the version in `record`. At a RESTORE, the search
    continues at the restored version.
    """
    commits = {int(each.get("version", 0)): each for each in history if not of_a_shard(each)}
    rewriting = rewritten_by(owner, record, (each for at, each in commits.items() if at <= version))
    by = read_commit(rewriting) if rewriting is not None else None
    lost, at = list[CommittedInterval](), version
    while at > record.version:
        commit = commits.get(at)
        if commit is None or not rewrites(commit) or is_by(owner, commit):
            at -= 1
            continue
        back = restored_version(commit)
        lost += [found for each in range(back + 1, at) if (found := _merged(owner, commits.get(each))) is not None]
        if back < 0:
            return LostCommits(commits=_sorted(lost), by=by, all_doubtful=True)
        at = back
    return LostCommits(commits=_sorted(lost), by=by if lost else None)


def newest_merged(owner: Owner, history: Iterable[Mapping[str, Any]]) -> CommittedInterval | None:
    """Returns the newest commit by a run of this owner, or None if the history has none."""
    found = _sorted(each for commit in history if (each := _merged(owner, commit)) is not None)
    return found[-1] if found else None


def _merged(owner: Owner, commit: Mapping[str, Any] | None) -> CommittedInterval | None:
    """Parses a commit by a run of the owner. Returns None for commits of other programs, and for maintenance, which changes no row."""
    if commit is None or not is_by(owner, commit):
        return None
    found = read_commit(commit)
    return None if found.kind == MAINTENANCE_KIND else found


def _sorted(commits: Iterable[CommittedInterval]) -> tuple[CommittedInterval, ...]:
    return tuple(sorted(commits, key=lambda each: each.version))
