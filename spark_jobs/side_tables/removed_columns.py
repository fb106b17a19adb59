"""Refuses a change log or history from which another program dropped or renamed columns that Sluice writes. `write` calls this module
before it writes such a table, and `sluice schema resume` calls it before a stopped table continues.

Sluice itself never drops or renames a column of a change log or history (`columns`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from sluice.batch_manifest.values import StagedTable
from sluice.spark_jobs.side_tables import change_log
from sluice.spark_jobs.side_tables.columns import map_columns
from sluice.spark_jobs.side_tables.history import KIND as HISTORY
from sluice.spark_jobs.side_tables.log_rows import IMAGES, log_schema
from sluice.spark_jobs.side_tables.side_table import SideTable
from sluice.spark_jobs.side_tables.versions import PERIOD_TYPES
from sluice.spark_jobs.staged_batch import columns_before, first_lacking
from sluice.spark_jobs.table_owner import LakeWriter, TableRecord, refuse_without_columns


def refuse_removed(
    writer: LakeWriter, record: TableRecord | None, table: SideTable, kind: str, columns: Collection[str]
) -> None:
    """Raises a TableError that stops the table if another program has dropped or renamed a column of the change log or history since the
    last run. `columns` are the columns of the change log or history that store columns of the source. If there are none, nothing is
    checked.
    """
    if record is None or table.log is None or not columns:
        return
    wanted = dataclasses.replace(writer, columns=_full_names(kind, columns))
    instead = "move this table away: Sluice then creates a new one"
    refuse_without_columns(wanted, record, table.found(writer.owner, record), instead)


def _full_names(kind: str, columns: Collection[str]) -> frozenset[str]:
    """Returns the lower-case names of these columns and of Sluice's own columns. In a change log, the columns are fields of the images."""
    if kind == HISTORY:
        return frozenset(name.lower() for name in (*columns, *PERIOD_TYPES))
    fields = (f"{image}.{name}" for image in IMAGES for name in columns)
    return frozenset(name.lower() for name in (*log_schema([]).names, *fields))


def needed_columns(staged: StagedTable, table: SideTable, kind: str) -> Collection[str]:
    """Returns the columns of the change log or history that store the source's columns from before the first segment that it lacks. Returns
    none if it lacks no segment, or if the table was renamed. Raises TableError if the columns cannot be mapped.
    """
    first = first_lacking(staged, table.applied, leaves_rows=True)
    if first is None:
        return ()
    if kind == change_log.KIND:
        return change_log.mapped_columns(table, columns_before(first)).names.values()
    there = {name: type_name for name, type_name in table.columns.items() if name not in PERIOD_TYPES}
    return map_columns(table.name, columns_before(first), there, table.sources).names.values()
