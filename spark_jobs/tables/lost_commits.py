"""Finds which commits of runs a Delta table no longer has, because another writer restored or overwrote it. Pure.

`sluice lake accept` shows them. Delta's log tells them: a RESTORE names the version to which it returned, and each commit of a run has a
record of its part of the stream (`commit_record`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from sluice.spark_jobs.table_owner import Owner, TableRecord, is_by, of_a_shard, restored_version, rewrites
from sluice.spark_jobs.tables.commit_record import MAINTENANCE_KIND, CommittedInterval, read_commit


@dataclasses.dataclass(frozen=True, kw_only=True)
class LostCommits:
    """The commits that were lost. `commits`: those of runs, oldest first. `by`: the newest commit of another writer that removed some; None
    if nothing was removed.

    `all_doubtful`: that commit does not say what it kept, so any row that runs merged may be missing.
    """

    commits: tuple[CommittedInterval, ...] = ()
    by: CommittedInterval | None = None
    all_doubtful: bool = False


def lost_commits(owner: Owner, record: TableRecord, version: int, history: Iterable[Mapping[str, Any]]) -> LostCommits:
    """Returns the commits that a run had left in the table and that its current version lacks.

    `record`: the table as the last run left it, which has everything. `version`: the current one. `history`: Delta's, in any order. The
    walk begins at the current version, and continues at its target from each RESTORE.
    """
    commits = {int(each.get("version", 0)): each for each in history if not of_a_shard(each)}
    lost, by, at = list[CommittedInterval](), None, version
    while at > record.version:
        commit = commits.get(at)
        if commit is None or not rewrites(commit) or is_by(owner, commit):
            at -= 1
            continue
        back = restored_version(commit)
        lost += [found for each in range(back + 1, at) if (found := _merged(owner, commits.get(each))) is not None]
        by = by or read_commit(commit)
        if back < 0:
            return LostCommits(commits=_sorted(lost), by=by, all_doubtful=True)
        at = back
    return LostCommits(commits=_sorted(lost), by=by if lost else None)


def newest_merged(owner: Owner, history: Iterable[Mapping[str, Any]]) -> CommittedInterval | None:
    """Returns the newest commit of the owner's runs in Delta's history; None if the log does not show one."""
    found = _sorted(each for commit in history if (each := _merged(owner, commit)) is not None)
    return found[-1] if found else None


def _merged(owner: Owner, commit: Mapping[str, Any] | None) -> CommittedInterval | None:
    """Returns what a run of the owner committed; None for other writers, and for maintenance, which changes no row."""
    if commit is None or not is_by(owner, commit):
        return None
    found = read_commit(commit)
    return None if found.kind == MAINTENANCE_KIND else found


def _sorted(commits: Iterable[CommittedInterval]) -> tuple[CommittedInterval, ...]:
    return tuple(sorted(commits, key=lambda each: each.version))
