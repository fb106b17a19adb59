"""Maintains a table's change log or history: joins small files, and deletes files that are no longer part of the table. The caller is a run
that holds the run lock.

deltalake joins and deletes the files. Rows are not ordered by a key, because the order would speed up no write: rows are only appended to a
change log, and a merge into a history reads mainly the current versions of rows. Consistent snapshots include these tables, so the next
consistent snapshot names their versions after the maintenance.
"""

from __future__ import annotations

import dataclasses
import math
import time

import pyarrow as pa
from deltalake import CommitProperties
from deltalake.exceptions import DeltaError

from sluice.spark_jobs.durable_lake import sync_commits
from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.maintain.rule import FILE_BYTES, MaintenanceAct
from sluice.spark_jobs.maintain.tables import VACUUM, Maintained, MaintainedTable, facts_of, looked_at
from sluice.spark_jobs.session import first_line
from sluice.spark_jobs.side_tables.side_table import NO_HOOKS, SideTable, side_app_id_of
from sluice.spark_jobs.table_owner import TableRecord, removed_columns
from sluice.spark_jobs.tables.commit_record import maintenance_record
from sluice.spark_jobs.tables.delta_table import VECTORS_FEATURE
from sluice.spark_jobs.tables.exact_bounds import writer_properties

# Before maintenance deletes files, it syncs all commits again that were made within this time, because a killed run may not have synced its
# last commits. If the host crashed after the deletion, such a commit could be lost, and the older version would need the deleted files.
# Older commits are on disk: operating systems write files within a minute, so an hour is ample.
UNSYNCED_SECONDS_MAX = 3600.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaintainedSideTable:
    """A change log or history (`kind`) to maintain. `current_state` is the current-state table to which it belongs."""

    current_state: MaintainedTable
    path: str
    kind: str

    @property
    def name(self) -> str:
        return f"{self.current_state.name}__{self.kind}"

    @property
    def table(self) -> MaintainedTable:
        """The change log or history as a MaintainedTable, from which `facts_of` computes statistics of its files."""
        owner = dataclasses.replace(self.current_state.owner, table=self.name)
        return MaintainedTable(owner=owner, path=self.path, storage_options=self.current_state.storage_options)

    def open(self) -> SideTable:
        """Opens the table. Raises TableError if it has another owner or cannot be read."""
        owner = self.current_state.owner
        app_id = side_app_id_of(owner.destination, owner.ledger_id, self.kind, owner.table)
        return SideTable(
            self.name, self.path, app_id, self.current_state.storage_options, fence=self.current_state.fence
        ).open()


def planned(given: MaintainedSideTable, *, wanted: bool = False) -> Maintained | None:
    """Returns what `compact` would do, without doing it. With `wanted` (an operator requested the maintenance), fewer small files are
    enough. Returns None if the table does not exist. Raises TableError if the table has another owner or cannot be read.
    """
    return looked_at(given.table, wanted=wanted) if given.open().log is not None else None


def compact(given: MaintainedSideTable, plan: Maintained) -> Maintained:
    """Joins small files, and returns what was done. If `plan.act` is NOTHING, does nothing and returns `plan`. Raises TableError if
    deltalake cannot rewrite the files.
    """
    if plan.act == MaintenanceAct.NOTHING:
        return plan
    began, side = time.monotonic(), given.open()
    side.fence.check(given.name)
    try:
        side.log.optimize.compact(
            target_size=FILE_BYTES,
            max_concurrent_tasks=1,
            writer_properties=writer_properties(pa.schema(side.log.schema().to_arrow())),
            commit_properties=CommitProperties(custom_metadata={"userMetadata": _record(given)}),
            post_commithook_properties=NO_HOOKS,
        )
        return _done(given, plan, side.version, began)
    except (DeltaError, OSError) as error:
        raise _failure(given, error) from error


def vacuum(given: MaintainedSideTable, hours: float) -> Maintained | None:
    """Deletes files that left the table more than `hours` ago. If the table has no deletion vectors, also deletes files that no commit
    names. Returns None if the table does not exist. Raises TableError if the files cannot be deleted.
    """
    began, side = time.monotonic(), given.open()
    before = facts_of(given.table)
    if side.log is None or before is None:
        return None
    version = side.version
    reason = f"files that left the table more than {hours:g} hours ago"
    plan = Maintained(name=given.name, act=VACUUM, reason=reason, before=before, after=before)
    try:
        # A power failure may lose unsynced commits that removed files from the table. The table would then need the files that are deleted
        # below.
        sync_commits(given.path, version, version, since_seconds=time.time() - UNSYNCED_SECONDS_MAX)
        side.fence.check(given.name)
        # With `full`, deltalake also deletes files that no commit names. `full` is not used for a table with deletion vectors: deltalake
        # does not recognize the files of deletion vectors as files of the table, and would delete them.
        full = VECTORS_FEATURE not in (side.log.protocol().reader_features or ())
        removed = side.log.vacuum(
            retention_hours=math.ceil(hours), dry_run=False, enforce_retention_duration=False, full=full
        )
        return dataclasses.replace(_done(given, plan, version, began), removed_files=len(removed))
    except (DeltaError, OSError) as error:
        raise _failure(given, error) from error


def _done(given: MaintainedSideTable, plan: Maintained, since: int, began: float) -> Maintained:
    side = given.open()
    version = side.version
    sync_commits(given.path, since, version)
    table = given.current_state
    # If another program restored the table or removed columns from it, the stored record stays. The next batch compares the record
    # with the table, and so detects the change.
    record = table.records.side_table(table.name, given.kind)
    if not _lacks_columns(side, table, record) and not side.was_restored(table.owner, record):
        table.records.keep_side_table(table.name, given.kind, side.record)
    after = facts_of(given.table) or plan.before
    return dataclasses.replace(plan, after=after, version=version, seconds=round(time.monotonic() - began, 3))


def _lacks_columns(side: SideTable, table: MaintainedTable, record: TableRecord | None) -> bool:
    """Returns whether another program has removed a column since `record` that the table still lacks. Columns with other names than those
    of the source count too, because a column of the source whose type changed continues in such a column.
    """
    if record is None:
        return False
    found = side.found(table.owner, record)
    unknown = {""}  # Stands for the columns of a commit that does not name them.
    return not removed_columns(record, found.commits, unknown).keys() <= set(found.columns)


def _failure(given: MaintainedSideTable, error: Exception) -> TableError:
    return TableError(
        given.name,
        f"{given.path} could not be maintained: {first_line(error)}; the next maintenance run tries again",
        own=False,
    )


def _record(given: MaintainedSideTable) -> str:
    return maintenance_record(given.table.owner, given.current_state.run)
