"""Removes old events and check results from Dagster's event storage with SQL for SQLite and Postgres. Keeps the newest event of each asset
and type, and the newest result of each check.

Each step compares events with the runs that exist. So if the job that removes events is killed, its next run removes the rest. Each
transaction is small, because SQLite has only one writer.
"""

from __future__ import annotations

import calendar
import datetime as dt
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import sqlalchemy as db
from dagster._core.instance.utils import RUNLESS_RUN_ID
from dagster._core.storage.event_log import SqliteEventLogStorage
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable as Checks
from dagster._core.storage.event_log.schema import AssetEventTagsTable as Tags
from dagster._core.storage.event_log.schema import SqlEventLogStorageTable as Events

from sluice.orchestration.base.table_catalog import SOURCE
from sluice.orchestration.retention.stored_runs import sqlite_file

if TYPE_CHECKING:
    from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage

PAGE = 2000
# Dagster's pages show an asset's newest event of each of these types, so this event is kept.
NEWEST_KEPT = [
    dg.DagsterEventType.ASSET_MATERIALIZATION.value,
    dg.DagsterEventType.ASSET_OBSERVATION.value,
    dg.DagsterEventType.FRESHNESS_STATE_CHANGE.value,
]
# Only a file that is at least this old is removed. A younger file may be in use: if somebody opens the page of a removed run in Dagster,
# Dagster creates the run's file again.
FILE_SECONDS_MIN = 3600.0

IsOld = Callable[[float], bool]
Existing = Callable[[Collection[str]], set[str]]
Connect = Callable[[], AbstractContextManager[db.Connection]]


class StoredEvents:
    """Removes events of the assets of some destinations, and events of runs that no longer exist. `existing` gets run ids and returns
    those of existing runs.
    """

    def __init__(self, storage: SqlEventLogStorage, destinations: Collection[str], existing: Existing) -> None:
        self._storage, self._destinations, self._existing = storage, frozenset(destinations), existing

    def remove_files(self) -> int:
        """Removes the event files of runs that no longer exist, and returns the number of removed files. Only SQLite's storage has such a
        file for each run. For another database, does nothing.
        """
        if not isinstance(self._storage, SqliteEventLogStorage):
            return 0
        run_ids, removed = self._storage.get_all_run_ids(), 0
        for begin in range(0, len(run_ids), PAGE):
            page = run_ids[begin : begin + PAGE]
            kept = self._existing(page)
            removed += sum(_unlink(Path(self._storage.path_for_shard(each))) for each in page if each not in kept)
        return removed

    def remove_events(self, is_old: IsOld) -> int:
        """Removes old events of two kinds: those whose run no longer exists, and those without a run that are about assets of the
        destinations. Keeps each asset's newest event of each type in NEWEST_KEPT. Returns the number of removed events.
        """
        removed = 0
        for rows in _pages(self._storage.index_connection, Events, Events.c.timestamp, is_old):
            ids = self._without_run(rows)
            with self._storage.index_connection() as connection:
                ids -= _newest_events(connection, ids)
                connection.execute(Tags.delete().where(Tags.c.event_id.in_(ids)))
                connection.execute(Events.delete().where(Events.c.id.in_(ids)))
            removed += len(ids)
        return removed

    def remove_runless_copies(self, is_old: IsOld) -> int:
        """Removes old events of the destinations' assets from SQLite's second copy of the events without a run. Returns the number of
        removed events. Dagster's pages of assets do not read this copy. Returns 0 for another database, which has no such copy.
        """
        if not isinstance(self._storage, SqliteEventLogStorage):
            return 0
        connect, removed = self._connect_runless, 0
        for rows in _pages(connect, Events, Events.c.timestamp, is_old):
            ids = [each.id for each in rows if self._is_ours(each.asset_key)]
            with connect() as connection:
                connection.execute(Events.delete().where(Events.c.id.in_(ids)))
            removed += len(ids)
        return removed

    def remove_check_results(self, is_old: IsOld) -> int:
        """Removes old check results of two kinds: those whose run no longer exists, and those without a run that are about assets of the
        destinations. Keeps the newest result of each check. Returns the number of removed results.
        """
        removed = 0
        for rows in _pages(self._storage.index_connection, Checks, Checks.c.create_timestamp, is_old):
            ids = self._without_run(rows)
            with self._storage.index_connection() as connection:
                ids -= _newest_checks(connection, ids)
                connection.execute(Checks.delete().where(Checks.c.id.in_(ids)))
            removed += len(ids)
        return removed

    @property
    def files(self) -> list[str]:
        """The SQLite files that do not belong to a single run: the common file, which has the events of assets, and the file with the
        events without a run. Empty for another database.
        """
        connects = [self._storage.index_connection]
        if isinstance(self._storage, SqliteEventLogStorage):
            connects.append(self._connect_runless)
        found = []
        for connect in connects:
            with connect() as connection:
                found.append(sqlite_file(connection))
        return [each for each in found if each]

    def _connect_runless(self) -> AbstractContextManager[db.Connection]:
        return self._storage.run_connection(RUNLESS_RUN_ID)

    def _without_run(self, rows: Sequence[Any]) -> set[int]:
        kept = self._existing({each.run_id for each in rows if each.run_id})
        return {each.id for each in rows if (each.run_id not in kept if each.run_id else self._is_ours(each.asset_key))}

    def _is_ours(self, asset_key: str | None) -> bool:
        """Returns whether the asset of an event without a run belongs to one of the destinations. Other code locations may use the same
        storage, and their events must stay.
        """
        key = dg.AssetKey.from_db_string(asset_key) if asset_key else None
        if key is None:
            return False
        path = key.path[1:] if key.path[0] == SOURCE else key.path
        return bool(path) and path[0] in self._destinations


def _pages(connect: Connect, table: db.Table, moment: db.Column[Any], is_old: IsOld) -> Iterator[list[Any]]:
    """Yields the old rows of a table in pages, oldest first. Ends at the first page without an old row, because ids rise with time."""
    columns = [table.c.id, table.c.run_id, table.c.asset_key, moment.label("moment")]
    last = 0
    while True:
        with connect() as connection:
            query = db.select(*columns).where(table.c.id > last).order_by(table.c.id).limit(PAGE)
            rows = connection.execute(query).fetchall()
        old = [each for each in rows if is_old(_seconds(each.moment))]
        if not old:
            return
        last = rows[-1].id
        yield old


def _newest_events(connection: db.Connection, ids: Collection[int]) -> set[int]:
    later = Events.alias()
    newer = db.select(later.c.id).where(
        later.c.asset_key == Events.c.asset_key,
        later.c.dagster_event_type == Events.c.dagster_event_type,
        later.c.id > Events.c.id,
    )
    query = db.select(Events.c.id).where(
        Events.c.id.in_(ids),
        Events.c.asset_key.is_not(None),
        Events.c.dagster_event_type.in_(NEWEST_KEPT),
        ~db.exists(newer),
    )
    return {row.id for row in connection.execute(query).fetchall()}


def _newest_checks(connection: db.Connection, ids: Collection[int]) -> set[int]:
    later = Checks.alias()
    newer = db.select(later.c.id).where(
        later.c.asset_key == Checks.c.asset_key, later.c.check_name == Checks.c.check_name, later.c.id > Checks.c.id
    )
    query = db.select(Checks.c.id).where(Checks.c.id.in_(ids), ~db.exists(newer))
    return {row.id for row in connection.execute(query).fetchall()}


def _seconds(moment: dt.datetime | None) -> float:
    """Converts a time of Dagster's storage, which is UTC without a zone, to seconds since 1970. Returns 0 for None, so that a row without a
    time counts as old.
    """
    return float(calendar.timegm(moment.utctimetuple())) if moment is not None else 0.0


def _unlink(path: Path) -> bool:
    """Removes the event file of a run, and returns True. Returns False if the file does not exist, or is younger than FILE_SECONDS_MIN.
    Removes SQLite's -wal and -shm files first: if a crash left these files without the event file, `remove_files` would never find them.
    """
    try:
        if abs(time.time() - path.stat().st_mtime) < FILE_SECONDS_MIN:
            return False
    except FileNotFoundError:
        return False
    for each in (f"{path}-wal", f"{path}-shm", str(path)):
        Path(each).unlink(missing_ok=True)
    return True
