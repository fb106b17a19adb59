"""Inspects the Delta tables of a destination between its runs, and reports tables that another program restored, replaced or removed.
Writes nothing.

A tick starts the inspection in a thread, because a lake may answer slowly. The tick passes the findings to the engine. `sluice status` and
the check of the engine's asset show them.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Protocol

from sluice.cdc_engine.destination_files import LakeTables, read_ledger
from sluice.cdc_engine.destination_files.catalog_record import catalog_troubles
from sluice.cdc_engine.limits import LAKE_WATCH_SECONDS
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.table_meta.table_list.reading import read_tables
from sluice.orchestration.base.lake_settings import lake_error_line, storage_options

if TYPE_CHECKING:
    from sluice.cdc_engine.config import SluiceConfig
    from sluice.spark_jobs.tables.lake_look import LakeLook

# The ids and versions of a table, of its change log and of its history after the last run, as `LakeTables` stores them.
Kept = Mapping[str, tuple[str, int]]

SHARE = 20  # Inspections take at most 1/SHARE of the time, so a slow lake is inspected less often.
# An inspection that takes longer than this is reported. Usually an inspection makes two stat calls per table and reads the Delta logs that
# have changed, but an unmounted disk may never answer.
LOOK_SECONDS_MAX = 300.0
# An inspection looks at all tables that runs have written since the previous inspection, and at most at this many other tables: those whose
# last inspection is longest ago. So its cost does not grow with the number of tables that no run writes.
LOOKED_MAX = 500
# At most this many findings are reported. One further sentence says how many are left out. An unmounted disk would affect all tables.
SHOWN_MAX = 5


class LakeWatcher(Protocol):
    """Inspects a lake for a tick."""

    def look(self, stopped: Collection[str]) -> None:
        """Starts an inspection if one is due. The inspection leaves out the `stopped` tables ("database.table")."""

    def troubles(self) -> tuple[str, ...]:
        """Returns the findings of the last inspection, one sentence each."""


class NoLakeWatcher:
    """Finds nothing. Definitions without a lake use it as their `LakeWatcher`."""

    def look(self, stopped: Collection[str]) -> None:
        """Does nothing, because there is no lake to inspect."""

    def troubles(self) -> tuple[str, ...]:
        return ()


NO_LAKE_WATCHER = NoLakeWatcher()


def in_a_thread(act: Callable[[], None]) -> None:
    """Calls `act` in a daemon thread, which does not delay the end of the process."""
    threading.Thread(target=act, name="lake-watch", daemon=True).start()


class LakeWatch:
    """Inspects one destination's Delta tables. `begin` runs an inspection, by default in another thread. Only one inspection runs at a
    time. `look` and `troubles` return at once.
    """

    def __init__(
        self, config: SluiceConfig, destination: str, begin: Callable[[Callable[[], None]], None] = in_a_thread
    ) -> None:
        self._config, self._destination, self._begin = config, destination, begin
        self._looking = threading.Lock()
        self._due = self._began = 0.0
        self._troubles: tuple[str, ...] = ()
        self._lake_look: LakeLook | None = None
        # For each table, its ids and versions at its last inspection, and the findings. The tables with the oldest inspections come first.
        self._looked: dict[str, tuple[Kept, list[str]]] = {}

    def troubles(self) -> tuple[str, ...]:
        seconds = time.monotonic() - self._began if self._looking.locked() else 0.0
        if seconds <= LOOK_SECONDS_MAX:
            return self._troubles
        return (
            *self._troubles,
            f"checking the Delta tables has taken {seconds:.0f} s so far: check whether the lake's disk or store answers",
        )

    def look(self, stopped: Collection[str]) -> None:
        if time.monotonic() < self._due or not self._looking.acquire(blocking=False):
            return
        self._began = time.monotonic()
        self._begin(lambda: self._look(frozenset(stopped)))

    def _look(self, stopped: Collection[str]) -> None:
        began = time.monotonic()
        try:
            here = self._config.destination_dir(self._destination)
            # Without a catalog in conf/, nothing has to be registered, and no run clears the record of earlier failures.
            unregistered = catalog_troubles(here) if self._config.catalog is not None else ()
            self._troubles = (*_shortened(self._found(stopped)), *unregistered)
        # The earlier findings are dropped after any error, because they may no longer be true.
        except Exception as error:
            self._troubles = (
                f"Sluice cannot check whether other programs changed the Delta tables: {self._shown(error)}; Sluice tries again",
            )
        finally:
            now = time.monotonic()
            self._due = began + max(LAKE_WATCH_SECONDS, SHARE * (now - began))
            self._looking.release()

    def _shown(self, error: Exception) -> str:
        return lake_error_line(self._config, error) or type(error).__name__

    def _found(self, stopped: Collection[str]) -> list[str]:
        from sluice.spark_jobs.errors import TableError  # noqa: PLC0415  imported where it is used, as in runs
        from sluice.spark_jobs.table_owner import Owner, TableRecord  # noqa: PLC0415
        from sluice.spark_jobs.tables.lake_look import LakeLook  # noqa: PLC0415

        directory = self._config.destination_dir(self._destination)
        records, ledger = LakeTables(directory), read_ledger(directory)
        captured = {table.name for table in read_tables(directory)}
        # Tables with an open snapshot are left out, because the snapshot is about to rewrite them.
        being_read = {each.name for each in SnapshotRecords(directory).all() if each.is_open}
        # Read for each inspection, because a secret may be rotated.
        options = storage_options(self._config.storage_options)
        self._lake_look = self._lake_look or LakeLook(options)
        self._lake_look.storage_options = options
        watched = {
            name: records.kept(name)
            for name in records.names
            if name not in stopped and name not in being_read and (not captured or name in captured)
        }
        for name in due_tables(watched, {name: kept for name, (kept, _) in self._looked.items()}):
            owner = Owner(ledger_id=ledger.ledger_id, destination=self._destination, table=name)
            sentences = []
            try:
                for path, (table_id, version) in self._kept(records, name):
                    sentences.append(
                        self._lake_look.trouble(owner, path, TableRecord(table_id=table_id, version=version))
                    )
            except TableError as error:
                sentences.append(self._shown(error))
            # Any error here must not hide the findings about the other tables.
            except Exception as error:
                sentences.append(
                    f"the Delta table of {name} cannot be watched for changes by other programs: {self._shown(error)}"
                )
            # Removing and adding the table moves it to the end, behind the tables with older inspections.
            self._looked.pop(name, None)
            self._looked[name] = watched[name], sentences
        self._looked = {name: found for name, found in self._looked.items() if name in watched}
        by_name = sorted(self._looked.items())
        return [sentence for _, (_, sentences) in by_name for sentence in sentences if sentence]

    def _kept(self, records: LakeTables, name: str) -> list[tuple[str, tuple[str, int]]]:
        """Returns the path of a table's current-state table, and its id and version after the last run. If there is no current-state table,
        returns path, id and version of the history and of the change log. Leaves out Delta tables whose id and version are not stored.
        """
        table = name.split(".", 1)
        if self._config.destinations[self._destination].table(*table).current_state:
            found = {self._config.table_path(self._destination, *table): records.get(name)}
        else:
            log, history = self._config.side_table_paths(self._destination, *table)
            side_tables = records.side_tables(name)
            found = {history: side_tables.get("history"), log: side_tables.get("log")}
        return [(path, kept) for path, kept in found.items() if path and kept]


def due_tables(watched: Mapping[str, Kept], looked: Mapping[str, Kept]) -> list[str]:
    """Returns which tables an inspection looks at: all new tables, all tables that a run has written since their last inspection, and at
    most LOOKED_MAX other tables, whose last inspection was longest ago. `looked` has the ids and versions of each table at its last
    inspection. In `looked`, the table with the oldest inspection comes first.
    """
    changed = [name for name, kept in watched.items() if looked.get(name) != kept]
    waiting = (name for name, kept in looked.items() if watched.get(name) == kept)
    return [*changed, *itertools.islice(waiting, LOOKED_MAX)]


def _shortened(sentences: list[str]) -> tuple[str, ...]:
    if len(sentences) <= SHOWN_MAX:
        return tuple(sentences)
    return (
        *sentences[:SHOWN_MAX],
        (f"{len(sentences) - SHOWN_MAX} further tables have problems too: check whether the lake's disk is mounted"),
    )
