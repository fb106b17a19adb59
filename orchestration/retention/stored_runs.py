"""Lists and removes old runs in Dagster's run storage with SQL for SQLite and Postgres, because Dagster has no call that removes many
runs.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import sqlalchemy as db
from dagster import DagsterRunStatus
from dagster._core.storage.runs.schema import RunsTable, RunTagsTable, SnapshotsTable
from dagster._core.storage.tags import REPOSITORY_LABEL_TAG

from sluice.orchestration.retention.rules import NEWEST_RUNS_KEPT, EndedRun

if TYPE_CHECKING:
    from dagster._core.storage.runs.sql_run_storage import SqlRunStorage

PAGE = 500  # One transaction removes at most this many runs, so that another writer waits only milliseconds.
BODIES_PAGE = 100
# This many of the newest snapshots (stored definitions of jobs) stay. Dagster stores a snapshot before the run that refers to it, so a new
# snapshot may not have its run yet.
SNAPSHOTS_KEPT = 100
ENDED = [DagsterRunStatus.SUCCESS.value, DagsterRunStatus.FAILURE.value, DagsterRunStatus.CANCELED.value]
PLAN = re.compile(r'"execution_plan_snapshot_id": ?"([^"]+)"')


class StoredRuns:
    """Lists and removes the runs of one code location. `label` is the value of the tag (REPOSITORY_LABEL_TAG) with which Dagster marks
    these runs. An empty `label` stands for runs without the tag, which no code location launched.
    """

    def __init__(self, storage: SqlRunStorage, label: str) -> None:
        marks = db.select(RunTagsTable.c.run_id).where(
            RunTagsTable.c.run_id == RunsTable.c.run_id, RunTagsTable.c.key == REPOSITORY_LABEL_TAG
        )
        self._storage = storage
        self._ours = db.exists(marks.where(RunTagsTable.c.value == label)) if label else ~db.exists(marks)

    def oldest_kept(self) -> dict[str, int]:
        """Returns, for each job, the number of the oldest of its NEWEST_RUNS_KEPT newest runs in this code location. Leaves out jobs with
        fewer runs.
        """
        found = {}
        with self._storage.connect() as connection:
            for (job,) in connection.execute(db.select(RunsTable.c.pipeline_name).distinct()).fetchall():
                newest = db.select(RunsTable.c.id).where(RunsTable.c.pipeline_name == job, self._ours)
                oldest = newest.order_by(RunsTable.c.id.desc()).offset(NEWEST_RUNS_KEPT - 1).limit(1)
                row = connection.execute(oldest).fetchone()
                if row is not None:
                    found[job] = int(row[0])
        return found

    def ended(self) -> Iterator[list[EndedRun]]:
        """Yields the runs that have ended, in pages, oldest first."""
        columns = (
            RunsTable.c.id,
            RunsTable.c.run_id,
            RunsTable.c.pipeline_name,
            RunsTable.c.status,
            RunsTable.c.end_time,
            RunsTable.c.update_timestamp,
        )
        last = 0
        while True:
            query = db.select(*columns).where(RunsTable.c.id > last, RunsTable.c.status.in_(ENDED), self._ours)
            with self._storage.connect() as connection:
                rows = connection.execute(query.order_by(RunsTable.c.id).limit(PAGE)).fetchall()
            if not rows:
                return
            last = int(rows[-1][0])
            yield [
                EndedRun(
                    number=int(number),
                    run_id=run_id,
                    job=job,
                    failed=status == DagsterRunStatus.FAILURE.value,
                    ended_at=end_time or calendar.timegm(updated.utctimetuple()),
                )
                for number, run_id, job, status, end_time, updated in rows
            ]

    def remove(self, run_ids: Sequence[str]) -> None:
        """Removes runs, and then their tags. On Postgres each statement is a separate transaction. If the tags were removed first, a crash
        could leave runs without tags. The prune job would never find these runs, because it finds runs by a tag.
        """
        with self._storage.connect() as connection:
            connection.execute(RunsTable.delete().where(RunsTable.c.run_id.in_(run_ids)))
            connection.execute(RunTagsTable.delete().where(RunTagsTable.c.run_id.in_(run_ids)))

    def existing(self, run_ids: Collection[str]) -> set[str]:
        """Returns those of the given run ids whose runs exist, in any code location."""
        with self._storage.connect() as connection:
            query = db.select(RunsTable.c.run_id).where(RunsTable.c.run_id.in_(list(run_ids)))
            return {row[0] for row in connection.execute(query).fetchall()}

    def remove_snapshots(self) -> int:
        """Removes stored definitions of jobs and plans to which no run refers. Returns their number. A run that is being created may
        refer to a removed definition. This run then fails, and its batch is handed out again.
        """
        with self._storage.connect() as connection:
            newest = db.select(SnapshotsTable.c.snapshot_id).order_by(SnapshotsTable.c.id.desc())
            old = {row[0] for row in connection.execute(newest.offset(SNAPSHOTS_KEPT)).fetchall()}
        if old:
            old -= self._used_snapshots()
        for chunk in _chunks(sorted(old)):
            with self._storage.connect() as connection:
                connection.execute(SnapshotsTable.delete().where(SnapshotsTable.c.snapshot_id.in_(chunk)))
        return len(old)

    def _used_snapshots(self) -> set[str]:
        used, last = set[str](), 0
        while True:
            query = db.select(RunsTable.c.id, RunsTable.c.snapshot_id, RunsTable.c.run_body).where(
                RunsTable.c.id > last
            )
            with self._storage.connect() as connection:
                rows = connection.execute(query.order_by(RunsTable.c.id).limit(BODIES_PAGE)).fetchall()
            if not rows:
                return used
            last = int(rows[-1][0])
            for _, snapshot, body in rows:
                used.add(snapshot)
                used.update(PLAN.findall(body))

    @property
    def file(self) -> str:
        """The path of the SQLite file, or "" for another database."""
        with self._storage.connect() as connection:
            return sqlite_file(connection)


def sqlite_file(connection: db.Connection) -> str:
    """Returns the path of a connection's SQLite file. Returns "" for another database, and for a database in memory."""
    url = connection.engine.url
    return url.database or "" if url.get_backend_name() == "sqlite" else ""


def _chunks(values: Sequence[str]) -> Iterator[Sequence[str]]:
    for begin in range(0, len(values), PAGE):
        yield values[begin : begin + PAGE]
