"""Gives a renamed table the rows and columns of the Delta table under its former name (the origin). `merge` calls this module.

The path of a lake table depends on its name, so a RENAME moves rows from one path to another, and in both directions if two tables swap
names. Each origin is read at its version immediately before the statement. Delta's log tells this version, even if this run or an earlier
one has committed to the origin since. One commit replaces the table by a copy of the origin. The commit records the RENAME statement as a
Delta transaction, so a second attempt changes nothing.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping

from sluice.batch_manifest.values import LakeColumn, SchemaSegment
from sluice.spark_jobs import sql_text
from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.staged_batch import DELETED, StagedBatch, app_id_of
from sluice.spark_jobs.table_owner import LakeWriter, Owner, TableRecords, refuse_unless_ours
from sluice.spark_jobs.tables.alterations import KEPT_PROPERTY, LOCAL_TIMES, kept_columns
from sluice.spark_jobs.tables.delta_table import (
    MAPPING_PROPERTY,
    DeltaSnapshot,
    DeltaTable,
    new_properties,
    pairs,
    wanted_columns,
)
from sluice.spark_jobs.targets import layout
from sluice.spark_jobs.targets.report import TableTarget

DDL_UNSUPPORTED = "DDL_UNSUPPORTED"
# A table property with the order key at which the table took over the rows of another table.
RENAMED_AT = "sluice.renamedAt"
# Sluice or Delta manages the properties with these prefixes. When a table is created again, it keeps all properties except these.
NOT_CARRIED = (
    *("sluice.", "delta.columnMapping.", "delta.feature.", "delta.inCommitTimestamp"),
    *("delta.rowTracking", "delta.enableRowTracking", "delta.coordinatedCommits"),
)


def nowhere(_name: str) -> TableTarget | None:
    """Returns None. This is the default of `target_of`, for a merge that has no targets of other tables."""
    return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Origin:
    """The Delta table under a former name. `snapshot` is its state immediately before the rename. `rows` is its present number of rows,
    which decides Spark's settings.
    """

    name: str
    path: str
    snapshot: DeltaSnapshot
    rows: int


@dataclasses.dataclass(frozen=True)
class Origins:
    """Finds the Delta tables under the former names of renamed tables. `writer` describes who writes the renamed table."""

    batch: StagedBatch
    writer: LakeWriter
    target_of: Callable[[str], TableTarget | None]
    storage_options: Mapping[str, str]
    records: TableRecords

    def find(self, name: str, segment: SchemaSegment) -> Origin:
        """Returns the Delta table under the former name of the table `name`. Raises TableError if the path of the Delta table is unknown,
        if the Delta table has another owner, or if another program replaced or restored it. Also raises TableError if conf/ makes the
        former name a shard, or sets `current_state: false` for it.
        """
        origin = segment.renamed_from
        target = self.target_of(origin)
        if target is None:
            raise TableError(
                name,
                f"the table was renamed from {origin}, and the path of {origin} in the lake is unknown; re-snapshot the table with "
                "`sluice snapshot start`",
            )
        if target.shard is not None:
            why = (
                f"the table was renamed from {origin}, which is a shard, and Sluice does not move rows of "
                "shards; re-snapshot the table with `sluice snapshot start`"
            )
            raise TableError(name, why, state=DDL_UNSUPPORTED, for_good=True)
        if not target.current_state:
            why = (
                f"the table was renamed from {origin}, which has current_state: false in conf/; read the rows "
                "of the table with `sluice snapshot start`"
            )
            raise TableError(name, why, state=DDL_UNSUPPORTED, for_good=True)
        owner, record = self.batch.owner_of(origin), self.records.get(origin)
        table = DeltaTable(name, target.path, app_id_of(owner), self.storage_options)
        table.refresh()
        try:
            refuse_unless_ours(
                dataclasses.replace(self.writer, owner=owner), record, table.found(record, owner.to_text())
            )
        except TableError as error:
            raise TableError(
                name, f"the table was renamed from {origin}; {error.reason}", state=error.state, for_good=True
            ) from error
        return Origin(name=origin, path=table.path, snapshot=table.before(segment.order_key), rows=table.row_count)


def take_over(table: DeltaTable, segment: SchemaSegment, target: TableTarget, origin: Origin, owner: Owner) -> str:
    """Returns the statement that replaces the Delta table of a renamed table by a copy of `origin`, the Delta table under the former name.
    If the origin does not exist, the statement empties the table. Table properties that Sluice does not manage stay.

    Raises TableError if the origin does not have the columns that the table needs.
    """
    there = origin.snapshot
    stays = table.snapshot if table.snapshot.exists else there
    left = [name for name in kept_columns(there.properties) if name.lower() in there.columns]
    staged = {column.name.lower() for column in segment.columns}
    left = [name for name in left if name.lower() not in staged]
    kept = [LakeColumn(name=there.columns[name.lower()][0], type=there.columns[name.lower()][1]) for name in left]
    soft = target.deletes == "soft" and bool(segment.key)
    wanted = wanted_columns((*segment.columns, *kept), soft_deletes=soft)
    values = ", ".join(_value(table.name, column, origin) for column in wanted)
    properties = {
        **carried_properties(stays),
        **new_properties(target, wanted, segment.key, owner.to_text()),
        RENAMED_AT: str(segment.order_key),
        **({KEPT_PROPERTY: json.dumps(left)} if left else {}),
        **({MAPPING_PROPERTY: "name"} if is_mapped(table.snapshot) or is_mapped(there) else {}),
        **(LOCAL_TIMES if any(column.type == "timestamp_ntz" for column in wanted) else {}),
    }
    laid = layout.clause(table.name, target.layout, wanted, stays.partitions, stays.features)
    return (
        f"CREATE OR REPLACE TABLE {sql_text.delta_path(target.path)} USING delta{laid} "
        f"TBLPROPERTIES ({pairs(properties)}) AS SELECT {values} FROM {_rows(origin, soft=soft)}"
    )


def _rows(origin: Origin, *, soft: bool) -> str:
    if not origin.snapshot.exists:
        return "(SELECT 1) WHERE false"
    alive = f" WHERE NOT coalesce({DELETED}, false)" if DELETED in origin.snapshot.columns and not soft else ""
    return f"{sql_text.delta_path(origin.path)} VERSION AS OF {origin.snapshot.version}{alive}"


def _value(name: str, column: LakeColumn, origin: Origin) -> str:
    there, kind = origin.snapshot.columns.get(column.name.lower(), ("", column.type))
    has_none = not origin.snapshot.exists or column.name == DELETED
    if kind != column.type or not (there or has_none):
        has = f"column {there} is {kind} instead of {column.type}" if there else f"there is no column {column.name}"
        reason = (
            f"the table was renamed from {origin.name}, and in the Delta table {origin.path} {has}: conf/ has "
            "different settings for the two names; make these settings equal and resume the table, or "
            "re-snapshot the table"
        )
        raise TableError(name, reason, state=DDL_UNSUPPORTED, for_good=True)
    value = sql_text.identifier(there) if there else f"CAST(NULL AS {column.type})"
    return f"{value} AS {sql_text.identifier(column.name)}"


def carried_properties(snapshot: DeltaSnapshot) -> dict[str, str]:
    """Returns the properties that a table keeps when it is created again. They include the CHECK constraints, which Delta then
    enforces for all rows of the new table.
    """
    return {name: value for name, value in snapshot.properties.items() if not name.startswith(NOT_CARRIED)}


def is_mapped(snapshot: DeltaSnapshot) -> bool:
    """Returns whether the table's columns are mapped by name. Sluice never removes such a mapping."""
    return snapshot.properties.get(MAPPING_PROPERTY, "none") != "none"
