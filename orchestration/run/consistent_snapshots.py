"""Records the consistent snapshots of a destination: the versions of all its tables that belong to one position. Callers hold the run
lock.
"""

from __future__ import annotations

import functools
import logging
import math
import time
from typing import TYPE_CHECKING

from sluice.cdc_engine.destination_files import LakeTables, read_ledger
from sluice.cdc_engine.errors import SluiceError
from sluice.cdc_engine.sink.table_filter import TableFilter
from sluice.orchestration.base.lake_settings import storage_options, target

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from sluice.cdc_engine.config import SluiceConfig
    from sluice.spark_jobs.consistent_snapshots import AmendedTable
    from sluice.spark_jobs.fence import Fence
    from sluice.spark_jobs.staged_batch import StagedBatch
    from sluice.spark_jobs.table_owner import TableRecord

    RecordedTable = tuple[str, TableRecord]

logger = logging.getLogger(__name__)

# Rewrites of the newest consistent snapshot take at most 1/SHARE of a run's time. After a rewrite, the run does its other work for at least
# SHARE times as long before it rewrites the snapshot again.
SHARE = 20


def publish_for_batch(
    config: SluiceConfig,
    destination: str,
    run: str,
    batch: StagedBatch,
    fence: Fence,
    *,
    buffered: Collection[str] = (),
) -> None:
    """Records a consistent snapshot of the destination: the versions of all its tables, change logs and histories at the batch's end. This
    record is the last commit of a batch's merge. `run` is the id of the Dagster run.

    `buffered` are the tables whose changes are buffered while a snapshot job reads their rows. A batch does not change the
    current-state tables of these tables, so the record repeats their versions. Their change logs and histories have new versions.

    The record marks as stopped: the current-state tables of `buffered`, and all Delta tables of stopped tables and of tables that conf/ no
    longer captures.

    Raises MergeError for tables whose path or version cannot be found, and TableError if Delta refuses the commit.
    """
    from sluice.consistent_snapshot.find import consistent_snapshots_path  # noqa: PLC0415
    from sluice.spark_jobs.consistent_snapshots import PublishedTables, publish_consistent_snapshot  # noqa: PLC0415

    directory, settings = config.destination_dir(destination), config.destinations[destination]
    records, captured = LakeTables(directory), _captured(settings.include, settings.exclude)
    left = {name for name in records.names if not captured.keeps(*name.split(".", 1))}
    stopped = {*left, *(each.name for each in read_ledger(directory).stopped_tables)}
    current_states, side_tables = _recorded_tables(config, destination, records, stopped)
    standing = {*stopped, *buffered, *(each for name in stopped for each in side_tables.get(name, ()))}
    found = {
        name: recorded
        for tables in (*side_tables.values(), *current_states.values())
        for name, recorded in tables.items()
    }
    published = PublishedTables(tables=_as_they_stand(found), stopped=standing, run=run)
    options = storage_options(config.storage_options)
    publish_consistent_snapshot(batch, consistent_snapshots_path(config.lake, destination), published, fence, options)


@functools.lru_cache(maxsize=16)
def _captured(include: str, exclude: str) -> TableFilter:
    """Returns the filter of the captured tables. It is made once, because a run may record many batches, and thousands of patterns take
    half a second.
    """
    return TableFilter(include, exclude)


def _recorded_tables(
    config: SluiceConfig, destination: str, records: LakeTables, stopped: Collection[str]
) -> tuple[dict[str, dict[str, RecordedTable]], dict[str, dict[str, RecordedTable]]]:
    """Returns two maps by table: the path and record of its current-state table, and those of its change log and history.

    Raises MergeError for tables whose path or version cannot be found. The run then fails. If the next runs fail too, these tables stop.
    Tables that are already stopped are left out instead.
    """
    from sluice.spark_jobs.errors import MergeError  # noqa: PLC0415
    from sluice.spark_jobs.session import table_error  # noqa: PLC0415

    current_states: dict[str, dict[str, RecordedTable]] = {}
    side_tables: dict[str, dict[str, RecordedTable]] = {}
    odd = []
    for name in records.names:
        try:
            one = _current_state(config, destination, records, name), _side_tables(config, destination, records, name)
        except SluiceError:
            raise
        except Exception as error:  # Whatever the error is, the other tables are still read.
            if name not in stopped:
                odd.append(
                    table_error(name, error, "the version of a table for the consistent snapshot cannot be found")
                )
        else:
            current_states[name], side_tables[name] = one
    if odd:
        raise MergeError(str(odd[0]), tuple(current_states), tuple(each.table for each in odd), tuple(odd))
    return current_states, side_tables


class SnapshotAmendments:
    """Adds tables to the destination's newest consistent snapshot after a publication, a backfill or a repair has written them.

    The snapshot is one row with all tables, so the cost of a rewrite rises with the number of tables. After a rewrite, the next rewrite
    becomes due only some time later, so that rewrites take at most 1/SHARE of the run's time. Until then, added tables are kept in
    `waiting`, and the run continues. Before the run ends, it adds the tables that are still in `waiting`. If the run is killed earlier, the
    newest consistent snapshot stays valid without these tables' new versions, and the snapshot of the next batch has them.
    """

    def __init__(self, config: SluiceConfig, destination: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._config, self._destination, self._clock = config, destination, clock
        self._due = -math.inf
        self._newest: tuple[Callable[[], str], int | None] | None = None
        self.waiting: dict[str, AmendedTable] = {}

    def add(self, table: str, label: int, refusal: Callable[[], str]) -> None:
        """Adds a table to `waiting`. The next rewrite of the newest consistent snapshot adds the tables in `waiting` to it. If a rewrite is
        due, rewrites the snapshot now. The table has all changes up to the order key `label`. The caller holds the run lock. `refusal` is
        the lock's fence, which is a new function each time the lock is taken. Raises SparkJobError if Delta refuses the commit.

        A shard is not added, because its Delta table may have rows of other shards that belong to no consistent snapshot yet. The snapshot
        of the next batch includes the shard.
        """
        from sluice.consistent_snapshot.find import consistent_snapshots_path  # noqa: PLC0415
        from sluice.spark_jobs.consistent_snapshots import AmendedTable, newest_order_key  # noqa: PLC0415

        there = self._recorded_tables(LakeTables(self._config.destination_dir(self._destination)), table)
        if there and target(self._config, self._destination, table).shard is None:
            # Only a batch changes the newest order key, and no batch is merged while this run holds the lock. So the key is read only once
            # each time the run takes the lock: `refusal` is another function each time.
            if self._newest is None or self._newest[0] is not refusal:
                options = storage_options(self._config.storage_options)
                path = consistent_snapshots_path(self._config.lake, self._destination)
                self._newest = refusal, newest_order_key(path, options)
            self.waiting[table] = AmendedTable(tables=there, label=label, newest=self._newest[1])
        if self._clock() >= self._due:
            self.write(refusal)

    def write(self, refusal: Callable[[], str]) -> None:
        """Rewrites the newest consistent snapshot with the tables in `waiting`. The caller holds the run lock. Raises SparkJobError if
        Delta refuses the commit.

        The snapshot gets the version that a table had when `add` was called for it, because a newer version may be from a batch that is not
        merged into all tables yet. A table is left out if its Delta table was created again after `add`. A table is also left out if a
        batch has recorded a consistent snapshot after `add`, because that snapshot has the table.
        """
        from sluice.consistent_snapshot.find import consistent_snapshots_path  # noqa: PLC0415
        from sluice.spark_jobs.consistent_snapshots import amend_newest  # noqa: PLC0415
        from sluice.spark_jobs.fence import Fence  # noqa: PLC0415

        if not self.waiting:
            return
        began, records = self._clock(), LakeTables(self._config.destination_dir(self._destination))
        as_added = [each for name, each in self.waiting.items() if self._is_as_added(records, name, each)]
        options = storage_options(self._config.storage_options)
        amend_newest(consistent_snapshots_path(self._config.lake, self._destination), as_added, Fence(refusal), options)
        self.waiting.clear()
        self._due = self._clock() + SHARE * (self._clock() - began)

    def _is_as_added(self, records: LakeTables, name: str, added: AmendedTable) -> bool:
        """Returns True if the Delta tables of a table still have the ids that they had when the table was added. Returns False if they do
        not, or if this cannot be found out.
        """
        try:
            return _ids(added.tables) == _ids(self._recorded_tables(records, name))
        except SluiceError:
            raise
        # Whatever the error is, the other tables are written now, and the snapshot of the next batch includes this table.
        except Exception:
            logger.exception(
                "%s is left out of the newest consistent snapshot because of an unexpected error; the snapshot of the next batch "
                "includes it",
                name,
            )
            return False

    def _recorded_tables(self, records: LakeTables, table: str) -> dict[str, RecordedTable]:
        side_tables = _side_tables(self._config, self._destination, records, table)
        return {**side_tables, **_current_state(self._config, self._destination, records, table)}


def _ids(tables: Mapping[str, RecordedTable]) -> dict[str, str]:
    return {name: record.table_id for name, (_, record) in tables.items()}


def _as_they_stand(tables: dict[str, RecordedTable]) -> dict[str, RecordedTable]:
    """Returns the tables with the newest version of each Delta table. The record of a shard has the version of that shard's last merge, so
    all shards of a Delta table get the newest of these versions.
    """
    newest: dict[str, TableRecord] = {}
    for path, record in tables.values():
        newest[path] = max(newest.get(path, record), record, key=lambda each: each.version)
    return {name: (path, newest[path]) for name, (path, _) in tables.items()}


def _current_state(config: SluiceConfig, destination: str, records: LakeTables, name: str) -> dict[str, RecordedTable]:
    """Returns the path and the record of a table's current-state table. Returns {} if the table has none."""
    from sluice.spark_jobs.table_owner import TableRecord  # noqa: PLC0415

    database, _, table = name.partition(".")
    kept = records.get(name)
    if kept is None or not config.destinations[destination].table(database, table).current_state:
        return {}
    path = config.table_path(destination, database, table)
    return {name: (path, TableRecord(table_id=kept[0], version=kept[1]))}


def _side_tables(config: SluiceConfig, destination: str, records: LakeTables, name: str) -> dict[str, RecordedTable]:
    """Returns the paths and records of a table's change log and history, as `table__log` and `table__history`, if conf/ configures them."""
    from sluice.spark_jobs.table_owner import TableRecord  # noqa: PLC0415

    kept = records.side_tables(name)
    if not kept:  # Most tables have neither a change log nor a history, so their paths need not be computed.
        return {}
    log, history = config.side_table_paths(destination, *name.split(".", 1))
    paths = {"log": log, "history": history}
    return {
        f"{name}__{kind}": (paths[kind], TableRecord(table_id=table_id, version=version))
        for kind, (table_id, version) in kept.items()
        if paths.get(kind)
    }
